"""What a trace has found, as plain numbers: phases, each the highest of a few polynomials.

Owns the form and its evaluation, which is what a serving process runs: no torch here, and
no search for the numbers (that is ``fit``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import mul

import msgspec

Number = int | float


class Peak(msgspec.Struct, frozen=True):
    """Live bytes at one operator: a polynomial in the sizes of its phase."""

    at: str
    """The operator and the module that ran it."""
    coefficients: tuple[Number, ...]
    """Bytes for each product of powers, the first axis' power changing fastest."""


class Piece(msgspec.Struct, frozen=True):
    """The peaks in one range of sizes, for a model that takes another path in the next one."""

    upto: tuple[int | None, ...]
    """The largest value of each axis; ``None`` = no limit."""
    peaks: tuple[Peak, ...]


class Phase(msgspec.Struct, frozen=True):
    """A part of the work whose peak has its own sizes: reading a prompt, writing, decoding an image."""

    name: str
    axes: tuple[str, ...]
    """Features of the workload."""
    degrees: tuple[int, ...]
    """The highest power of each axis."""
    steps: tuple[int, ...]
    """Sizes are rounded up to a multiple of it: the chunk that the model pads to."""
    pieces: tuple[Piece, ...]
    """From the smallest sizes up; the last has no limit."""
    new_tokens: int = 0
    """It comes only when at least so many tokens are written."""
    prompt_logprobs: bool = False
    """It comes only when these are asked for."""

    def at(self, values: Sequence[Number]) -> tuple[Number, Peak, Sequence[Number]]:
        """The highest peak at ``values`` of the axes: its bytes, which it is, and the products of powers."""
        rounded = [-(-v // s) * s if s > 1 else v for v, s in zip(values, self.steps, strict=True)]
        powers = products(rounded, self.degrees)
        best: Number = -1
        found = self.pieces[0].peaks[0]
        for peak in self._piece(rounded).peaks:
            size = sum(map(mul, peak.coefficients, powers))
            if size > best:
                best, found = size, peak
        return best, found, powers

    def _piece(self, values: Sequence[Number]) -> Piece:
        for piece in self.pieces:
            for limit, value in zip(piece.upto, values, strict=True):
                if limit is not None and value > limit:
                    break
            else:
                return piece
        return self.pieces[-1]


class FitCheck(msgspec.Struct, frozen=True):
    """How far the polynomials are from points that were traced and not fitted."""

    points: int
    """How many of them."""
    worst: float
    """The largest error as a share, over-estimates positive."""
    at: Mapping[str, int] = {}
    """The sizes at that point."""


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a trace has found about one model."""

    model: str
    """What was traced, in words."""
    phases: tuple[Phase, ...]
    check: FitCheck
    settings: Mapping[str, str] = {}
    """Choices that it holds for: ``attention``, ``experts``, ``dtype`` …"""
    notes: tuple[str, ...] = ()
    """What was stood in for, or assumed."""
    seconds: float = 0.0
    """How long the tracing took."""


def products(values: Sequence[Number], degrees: Sequence[int]) -> list[Number]:
    """All products of powers of ``values``, each up to its degree, the first changing fastest."""
    found: list[Number] = [1]
    for value, degree in zip(values, degrees, strict=True):
        lower = found
        for _ in range(degree):
            lower = [value * p for p in lower]
            found = found + lower
    return found


def product_names(axes: Sequence[str], degrees: Sequence[int]) -> list[str]:
    """A name for each of ``products``: ``"constant"``, ``"sequences"``, ``"sequences*prompt_tokens^2"``."""
    found: list[tuple[str, ...]] = [()]
    for axis, degree in zip(axes, degrees, strict=True):
        powers = [(), *((axis if n == 1 else f"{axis}^{n}",) for n in range(1, degree + 1))]
        found = [(*names, *power) for power in powers for names in found]
    return ["*".join(names) or "constant" for names in found]
