"""Tokens of an image by model family. Owns one rule for each way of cutting an image up.

Each rule takes (width, height) in pixels and follows the published preprocessor of the
family; begin and end marks are not included. A size of (0, 0) is not known, and costs the
family's maximum. Where sizes come from must not be put here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from gpu_admission.bodies.numbers import positive_option

Rule: TypeAlias = Callable[[int, int], int]
ImageTokensOption: TypeAlias = str | int | Rule
"""A family's name, tokens of every image, or a function of width and height."""

_NEXT_CANVASES = ((672, 336), (336, 672), (672, 672), (336, 1008), (1008, 336))


def rule_of(image_tokens: ImageTokensOption) -> Rule:
    """The rule that the option ``image_tokens`` asks for. Raises ``TypeError`` or ``ValueError``.

    ``any`` is the most that any family takes, for a model that is not known.
    """
    if isinstance(image_tokens, str):
        if image_tokens not in FAMILIES:
            raise ValueError(f"image_tokens must be one of {sorted(FAMILIES)}, got {image_tokens!r}")
        return FAMILIES[image_tokens]
    if callable(image_tokens):
        return image_tokens
    constant = positive_option(image_tokens, "image_tokens")
    return lambda width, height: constant


def _scaled_to_pixels(factor: int, least: int, most: int) -> Rule:
    """Qwen: both sides to multiples of ``factor``, the area to ``least``..``most`` tokens."""

    def rule(width: int, height: int) -> int:
        if not width or not height:
            return most
        columns, rows = round(width / factor), round(height / factor)
        if columns * rows > most:
            scale = math.sqrt(width * height / most)
            columns, rows = max(1, int(width / scale)), max(1, int(height / scale))
        elif columns * rows < least:
            scale = math.sqrt(least / (width * height))
            columns, rows = math.ceil(width * scale), math.ceil(height * scale)
        return columns * rows

    return rule


def _emu3(width: int, height: int) -> int:
    """Emu3: both sides to multiples of 8, the area to 512**2..1024**2 pixels, and one end for each row."""
    if not width or not height:
        return 128 * 128 + math.ceil(128 * math.sqrt(200))  # it accepts sides of at most 200 to 1
    patches = _scaled_to_pixels(8, 64 * 64, 128 * 128)(width, height)
    rows = math.ceil(math.sqrt(patches * height / width))
    return patches + min(rows, patches)


def _rows_with_ends(longest: int, patch: int) -> Rule:
    """Pixtral: the long side to at most ``longest``, then patches, and one end for each row."""
    side = math.ceil(longest / patch)

    def rule(width: int, height: int) -> int:
        if not width or not height:
            return side * (side + 1)
        ratio = max(width / longest, height / longest, 1.0)
        columns, rows = (max(1, math.ceil(int(size / ratio) / patch)) for size in (width, height))
        return rows * (columns + 1)

    return rule


def _llava_next(width: int, height: int) -> int:
    """A base view, and the picture on the canvas that keeps most of it, without padding."""
    if not width or not height:
        return 576 + 48 * 49
    canvas_width, canvas_height = max(_NEXT_CANVASES, key=lambda canvas: _fit(width, height, *canvas))
    columns, rows = canvas_width // 14, canvas_height // 14
    if width / height > columns / rows:
        rows -= (rows - int(round(height * columns / width, 7))) // 2 * 2
    else:
        columns -= (columns - int(round(width * rows / height, 7))) // 2 * 2
    return 576 + rows * (columns + 1)


def _fit(width: int, height: int, canvas_width: int, canvas_height: int) -> tuple[int, int]:
    """Pixels that a canvas keeps, and (negative) those that it wastes."""
    scale = min(canvas_width / width, canvas_height / height)
    kept = min(int(width * scale) * int(height * scale), width * height)
    return kept, kept - canvas_width * canvas_height


def _internvl(width: int, height: int) -> int:
    """Up to 12 tiles of 448 pixels in the nearest aspect ratio, and a thumbnail beside several."""
    if not width or not height:
        return 256 * 13
    best, distance = 1, math.inf
    for tiles, ratio in _TILINGS:
        off = abs(width / height - ratio)
        if off < distance or (off == distance and width * height > 0.5 * 448 * 448 * tiles):
            best, distance = tiles, off
    return 256 * (best + (best > 1))


def _openai_tiles(width: int, height: int) -> int:
    """High detail: inside 2048 x 2048, the short side to 768, then tiles of 512."""
    if not width or not height:
        return 85 + 170 * 8
    scale = min(1.0, 2048 / max(width, height))
    scale *= min(1.0, 768 / (min(width, height) * scale))
    tiles = math.ceil(width * scale / 512) * math.ceil(height * scale / 512)
    return 85 + 170 * tiles


def _most_of_all(width: int, height: int) -> int:
    rules = (_QWEN2, _QWEN3, _emu3, _internvl)  # one of these is always the largest
    return max(rule(width, height) for rule in rules)


def _tilings() -> tuple[tuple[int, float], ...]:
    grids = {(columns, rows) for columns in range(1, 13) for rows in range(1, 12 // columns + 1)}
    return tuple((columns * rows, columns / rows) for columns, rows in sorted(grids, key=math.prod))


_TILINGS = _tilings()
_QWEN2 = _scaled_to_pixels(28, 4, 16384)
_QWEN3 = _scaled_to_pixels(32, 64, 16384)
_PIXTRAL = _rows_with_ends(1024, 16)

FAMILIES: Final[Mapping[str, Rule]] = {
    "any": _most_of_all,
    "emu3": _emu3,
    "gemma-3": lambda width, height: 256,
    "internvl": _internvl,
    "llama-3.2-vision": lambda width, height: 1,
    "llava-1.5": lambda width, height: 576,
    "llava-next": _llava_next,
    "mistral-small-3.1": _rows_with_ends(1540, 28),
    "openai": _openai_tiles,
    "pixtral": _PIXTRAL,
    "qwen2-vl": _QWEN2,
    "qwen2.5-vl": _QWEN2,
    "qwen3-vl": _QWEN3,
}
"""The rule of each family by its name."""
