"""A request as numbers, and the name of its route: what ``Measured`` fits over.

Owns which numbers those are. What is made of them is ``envelope``'s.
"""

from __future__ import annotations

import hashlib
from typing import TypeAlias

from gpu_admission.errors import UnreadableBody
from gpu_admission.request import RequestInfo
from gpu_admission.types import Workload
from gpu_admission.workloads.choice import reads_path

_LONGEST_NAME = 200
FEATURES = ("prompt", "asked", "used", "pixels", "audio", "tensors", "body")
_PIXELS = 1024 * 1024
"""Of a picture whose size is not known."""
Row: TypeAlias = tuple[float, ...]
"""``FEATURES`` of one request."""


def name_of(path: str, *others: str | None) -> str:
    """A route by its path, the model that the body names, and whose it is."""
    return " ".join(name[:_LONGEST_NAME] for name in (path, *others) if name)


def path_of(route: str) -> str:
    """The beginning of what ``name_of`` gave, which may be empty."""
    return route.partition(" ")[0]


def asked_of(info: RequestInfo) -> Workload:
    """What the body asks; nothing, where it can't be read and no API says that it could."""
    try:
        return info.workload
    except UnreadableBody:
        if reads_path(info.path):
            raise
        return Workload()


def hidden(flow: str) -> str:
    """What tells flows apart, in files and to other processes, and does not say whose they are."""
    return hashlib.blake2b(flow.encode(errors="replace"), digest_size=8).hexdigest()


def row_of(workload: Workload, asked: Workload, size: int, route: str) -> Row:
    """``workload`` as numbers; bytes of the body where it is of no API that is known."""
    rows = max(1, workload.sequences)
    seen = sum(width * height or _PIXELS for width, height in workload.images)
    made = workload.width * workload.height * max(1, workload.frames) * rows
    return (
        float(workload.prompt_tokens * rows),
        float(asked.new_tokens * rows),
        float(workload.new_tokens * rows),
        float(seen + made),
        float(workload.audio_seconds),
        float(workload.tensor_bytes),
        0.0 if reads_path(path_of(route)) else float(size),
    )
