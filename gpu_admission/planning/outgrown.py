"""Doors inside other doors that ask for more than those: their requests are refused where they would wait.

Owns the sentences that say so. What the app has is in ``appdoors``.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from gpu_admission.admission import Admission
from gpu_admission.planning.appdoors import Looked, Metered
from gpu_admission.sizes import format_bytes


def outgrown(admission: Admission, looked: Looked) -> Iterator[str]:
    """A sentence for each door of ``admission`` of a fixed size, larger than that of the door around it."""
    ours = [each for each in looked.metered if each.admission is admission]
    for outer, inner in pairwise(ours):
        if (outer.method, outer.path) != (inner.method, inner.path):
            continue
        held, asked = _size(outer), _size(inner)
        if held is not None and asked is not None and held < asked:
            yield (
                f"{inner.method} {inner.path}: {outer.by} holds {format_bytes(held)}, and {inner.by} inside "
                f"it asks for {format_bytes(asked)}: what holds bytes never waits for more, and is "
                f"refused (429) where the rest is not free. Have one door meter it, by "
                f"Admission(exclude=[{outer.path!r}]), or name its size in the estimator of the {outer.by}"
            )


def _size(door: Metered) -> int | None:
    """Bytes of each request; ``None`` where that depends on the request."""
    fixed = door.rule.fixed
    return None if fixed is None else fixed.bytes
