"""What a trace has found, as plain numbers: phases, each the maximum of a few polynomials.

Owns the form and its evaluation, which is what a serving process runs: no torch here, and
no search for the numbers (that is ``fit``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from gpu_admission.estimators.traced.compiled import Number, Reader, compiled
from gpu_admission.estimators.vision import Vision


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
    """It happens only if at least so many tokens are written."""
    prompt_logprobs: bool = False
    """It happens only if these are asked for."""

    @property
    def peaks(self) -> list[Peak]:
        """Those of all its pieces, in order."""
        return [peak for piece in self.pieces for peak in piece.peaks]

    def at(self, values: Sequence[Number]) -> Number:
        """Bytes of the highest peak at ``values`` of the axes."""
        return reader(self)(values)[0]


class FitCheck(msgspec.Struct, frozen=True):
    """How far the polynomials are from points that were traced and not fitted."""

    points: int
    """How many of them."""
    worst: float
    """The largest error as a share, over-estimates positive."""
    at: Mapping[str, int] = {}
    """The sizes at that point."""


class Tower(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of a ``Vision``, for a language model that looks at images."""

    pixel: int
    patch: int
    pair: int
    patch_size: int
    size: tuple[int, int] | None
    max_pixels: int | None
    together: bool
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, vision: Vision) -> Tower:
        """Those of ``vision``."""
        most = vision.max_pixels if vision.size is None else None
        return cls(
            pixel=vision.pixel,
            patch=vision.patch,
            pair=vision.pair,
            patch_size=vision.patch_size,
            size=vision.size,
            max_pixels=most,
            together=vision.together,
            notes=vision.notes,
        )

    def vision(self) -> Vision:
        """The estimator. Raises ``ValueError`` when the numbers don't belong together."""
        return Vision(**msgspec.structs.asdict(self))


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a trace has found about one model."""

    model: str
    """What was traced, in words."""
    phases: tuple[Phase, ...]
    check: FitCheck
    settings: Mapping[str, str] = {}
    """Choices that it holds for: ``attention``, ``experts``, ``dtype`` …"""
    notes: tuple[str, ...] = ()
    """What had a stand-in, or was assumed."""
    tower: Tower | None = None
    """What its images take, besides the phases."""
    text_only: bool = False
    """It could look at images, which are neither in the phases nor in ``tower``."""
    seconds: float = 0.0
    """How long the tracing took."""


def reader(phase: Phase) -> Reader:
    """A quick function of the values of the phase's axes."""
    pieces = [(piece.upto, [peak.coefficients for peak in piece.peaks]) for piece in phase.pieces]
    return compiled(pieces, phase.degrees, phase.steps)


def products(values: Sequence[Number], degrees: Sequence[int]) -> list[Number]:
    """All products of powers of ``values``, each up to its degree, the first changing fastest."""
    found: list[Number] = [1]
    for value, degree in zip(values, degrees, strict=True):
        lower = found
        if degree:
            lower = [value * p for p in found]
            found = found + lower
            for _ in range(degree - 1):
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
