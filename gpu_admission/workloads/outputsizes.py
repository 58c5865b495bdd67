"""Pictures and videos that a body asks to be made. Owns the names of their sizes and counts.

If a size is stated several times the largest counts, for each side by itself: servers differ in
whether they look at ``size`` or at ``width`` and ``height``. Where the fields stand is up to the dialects.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from gpu_admission.bodies.numbers import CEILING, fraction, positive
from gpu_admission.errors import UnreadableBody

_SIZE = re.compile(r"\s*(\d{1,15})\s*[xX*]\s*(\d{1,15})\s*", re.ASCII)
FPS = 24.0
"""Frames per second where a body gives none, as in HunyuanVideo, LTX and Sora; others make fewer."""

_SIZES = ("size", "image_size", "video_size", "resolution")
_COUNTS = ("num_outputs_per_prompt", "num_images_per_prompt", "num_videos_per_prompt", "num_images")
_FRAMES = ("num_frames", "frames", "video_length")
_SECONDS = ("seconds", "duration")
_RATES = ("fps", "frame_rate")
NAMES = frozenset({"width", "height", "extra_body", *_SIZES, *_COUNTS, *_FRAMES, *_SECONDS, *_RATES})
"""Fields that this module reads. ``extra_body`` is one where a client wrote it out."""


class Made(NamedTuple):
    """What is to be made; 0 = not said."""

    width: int = 0
    height: int = 0
    copies: int = 0
    frames: int = 0


def read_made(places: Iterable[Mapping[str, Any]], *, fps: float) -> Made:
    """The largest statements in ``places``. Raises ``UnreadableBody`` for what is no number.

    A length in seconds is turned into frames at the stated rate, or at ``fps``.
    """
    found = [_made(fields, fps) for place in places for fields in (place, _extra(place)) if fields]
    return Made(*(max(values) for values in zip(*found, strict=True))) if found else Made()


def read_size(value: Any) -> tuple[int, int] | None:
    """(width, height) of a text such as ``1024x768``; ``None`` where it is no size."""
    match = _SIZE.fullmatch(value) if type(value) is str else None
    return (int(match[1]), int(match[2])) if match else None


def _extra(fields: Mapping[str, Any]) -> Mapping[str, Any] | None:
    extra = fields.get("extra_body")
    return extra if type(extra) is dict else None


def _made(fields: Mapping[str, Any], fps: float) -> Made:
    sizes = [_size(fields[name]) for name in _SIZES if name in fields]
    sizes.append((positive(fields, "width", 0), positive(fields, "height", 0)))
    width, height = (max(side) for side in zip(*sizes, strict=True))
    copies = max(positive(fields, name, 0) for name in _COUNTS)
    return Made(width, height, copies, _frames(fields, fps))


def _size(value: Any) -> tuple[int, int]:
    if type(value) is dict:
        return positive(value, "width", 0), positive(value, "height", 0)
    return read_size(value) or (0, 0)


def _frames(fields: Mapping[str, Any], fps: float) -> int:
    said = max(positive(fields, name, 0) for name in _FRAMES)
    length = max(_number(fields, name, 0.0) for name in _SECONDS)
    rate = max(_number(fields, name, 0.0) for name in _RATES) or fps
    return max(said, min(math.ceil(length * rate) + 1, CEILING) if length else 0)


def _number(fields: Mapping[str, Any], name: str, default: float) -> float:
    """A number, also one with a unit behind it, as in ``8s``."""
    value = fields.get(name)
    if type(value) is str:
        value = value.strip().removesuffix("s")
    try:
        return fraction({name: value}, name, default)
    except UnreadableBody:
        return default
