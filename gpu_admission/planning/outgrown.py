"""Doors inside other doors that ask for more than those: their requests are refused where they would wait.

Owns the sentences that say so. What the app has is in ``appdoors``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from gpu_admission.admission import Admission
from gpu_admission.planning.appdoors import Looked, Metered
from gpu_admission.sizes import format_bytes


def outgrown(admission: Admission, looked: Looked) -> Iterator[str]:
    """A sentence for each door of ``admission`` whose size is fixed, and larger than those around it."""
    largest: dict[tuple[str, str], Metered] = {}
    """Of the doors that a request has passed, for each method and path."""
    for door in looked.metered:
        if door.admission is admission:
            outer = largest.setdefault((door.method, door.path), door)
            if _size(door) > _size(outer):
                largest[door.method, door.path] = door
                if door.rule.fixed is not None:
                    yield _sentence(door, outer)


def _size(door: Metered) -> float:
    """Bytes of each request; where that depends on the request, it may be any size."""
    return math.inf if door.rule.fixed is None else door.rule.fixed.bytes


def _sentence(inner: Metered, outer: Metered) -> str:
    held, asked = int(_size(outer)), int(_size(inner))
    one = f"Admission(exclude=[{outer.path!r}])" if outer.by == "middleware" else "leaving the other out"
    return (
        f"{inner.method} {inner.path}: {outer.by} holds {format_bytes(held)}, and {inner.by} inside "
        f"it asks for {format_bytes(asked)}: what holds bytes never waits for more, and is "
        f"refused (429) where the rest is not free. Have one door meter it, by "
        f"{one}, or name its size in the estimator of the {outer.by}"
    )
