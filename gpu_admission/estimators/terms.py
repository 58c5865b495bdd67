"""What all estimates share: the clamp, the notes on assumed values, and the printed form.

Owns the promise that no estimate is zero or absurd, whatever a formula says. No formula
belongs here.
"""

from __future__ import annotations

import math
from typing import Any, cast

from gpu_admission.request import Estimator
from gpu_admission.sizes import MAX_BYTES, format_bytes
from gpu_admission.types import Estimate, Workload


def clamp(value: float) -> int:
    """``value`` rounded up to whole bytes, at least 1 and at most 2**62. NaN gives the most."""
    if value < MAX_BYTES:
        if type(value) is int and value > 0:
            return value
        return math.ceil(value) if value > 1 else 1
    return MAX_BYTES


def checked_inner(inner: Any) -> Estimator:
    """``inner`` of an estimator around another. Raises ``TypeError`` if it is none."""
    if callable(inner):
        return cast("Estimator", inner)
    raise TypeError(
        f"inner must be an estimator, such as Linear(...), Constant(...) or a function, got {inner!r}"
    )


def assumed(workload: Workload) -> tuple[str, ...]:
    """One note for each value that the body left out and a dialect filled in."""
    return tuple(f"{name} was absent: a default was assumed" for name in workload.defaulted)


def render(title: str, estimate: Estimate) -> str:
    """``estimate`` as text: a line for each term, the total, the range, and the notes."""
    rows = [*((name, size) for name, size in estimate.parts.items() if size), ("= charged", estimate.bytes)]
    if estimate.low is not None and estimate.low != estimate.bytes:
        rows.append(("  at least", estimate.low))
    width = max(len(name) for name, _ in rows)
    lines = [f"  {name:<{width}}  {format_bytes(size):>11}  {size:,} B" for name, size in rows]
    return "\n".join([f"{title} ({estimate.basis} bytes)", *lines, *(f"  note: {n}" for n in estimate.notes)])
