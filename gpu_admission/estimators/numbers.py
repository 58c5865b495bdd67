"""A request as numbers, and the name of its route: what ``Measured`` fits over.

Owns which numbers those are. How they are fitted is in ``envelope``.
"""

from __future__ import annotations

import hashlib
from typing import TypeAlias

import msgspec

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
    """A route: its path, the model that the body names, and the flow it belongs to."""
    return " ".join(name[:_LONGEST_NAME] for name in (path, *others) if name)


def path_of(route: str) -> str:
    """The beginning of what ``name_of`` gave, which may be empty."""
    return route.partition(" ")[0]


def asked_of(info: RequestInfo) -> Workload:
    """What the body asks for; an empty workload if it can't be read and belongs to no known API."""
    try:
        return info.workload
    except UnreadableBody:
        if reads_path(info.path):
            raise
        return Workload()


def model_of(info: RequestInfo) -> str | None:
    """The model that the body names, where one can be read."""
    try:
        return info.workload.model
    except UnreadableBody:
        return None


def hidden(flow: str) -> str:
    """A key that tells flows apart, in files and for other processes, without revealing whose they are."""
    return hashlib.blake2b(flow.encode(errors="replace"), digest_size=8).hexdigest()


def reach_of(workload: Workload, asked: Workload, size: int, route: str) -> Row:
    """What tells whether something is a new size: all that the body says, and the tokens it uses.

    Tokens that were asked for and not used vouch for nothing; a prompt is known by its body.
    """
    return row_of(msgspec.structs.replace(asked, new_tokens=workload.new_tokens), asked, size, route)


def row_of(workload: Workload, asked: Workload, size: int, route: str) -> Row:
    """``workload`` as numbers; if the body is of no known API, its bytes."""
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
