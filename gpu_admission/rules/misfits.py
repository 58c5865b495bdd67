"""What is known never to fit, before any request: logged at start, or refused with ``strict=True``.

Sizes that the settings name are compared with what may ever be given out. An estimator with
a formula is asked about the smallest request there is: the largest has no bound of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpu_admission.rules.metering import Fixed
from gpu_admission.sizes import format_bytes
from gpu_admission.types import Estimate, Workload

_SMALLEST = Workload(prompt_tokens=1, new_tokens=1, width=8, height=8)
"""It names a picture size: without one the model's own would apply, which is among the largest."""


def misfits(named: Iterable[tuple[str, Any]], fallback: int | None, largest: float) -> list[str]:
    """A sentence for each by which a request would need more than ``largest`` bytes.

    ``named``: estimators, each with the name of its setting or door.
    """
    found = [] if fallback is None else [("fallback", "a body that can't be read", fallback)]
    for name, estimator in named:
        size = _least(estimator)
        if size is not None:
            found.append((name, "even the smallest request", size))
    return [
        f"{name}: {what} needs {format_bytes(size)}, and no request may ever hold more than "
        f"{format_bytes(int(largest))}: it is refused (413)"
        for name, what, size in found
        if size > largest
    ]


def _least(estimator: Any) -> int | None:
    """Bytes of the smallest request; ``None`` if the estimator can't say without a real one."""
    if isinstance(estimator, Fixed):
        return estimator.bytes
    formula = getattr(estimator, "estimate", None)
    if formula is None:
        return None
    try:
        estimate = formula(_SMALLEST)
    except Exception:  # an estimator that needs more than a formula does: it is asked with each request
        return None
    return estimate.bytes if isinstance(estimate, Estimate) else None
