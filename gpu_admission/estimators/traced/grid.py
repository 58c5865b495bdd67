"""Which sizes are traced, and the phases that come out.

Owns the grid: the points of each axis, in each range where the model takes one path, and
the points that only check. How one point is traced is the ``Run``'s; how polynomials are
found is in ``fit``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final, TypeAlias

from msgspec import structs

from gpu_admission.estimators.traced.compiled import Number
from gpu_admission.estimators.traced.fit import Record, fit_peaks
from gpu_admission.estimators.traced.peaks import FitCheck, Peak, Phase, Piece

Sizes: TypeAlias = "dict[str, int]"
Run: TypeAlias = Callable[[Sizes], Mapping[str, Record]]
"""Traces the model at these sizes of the axes; the record of each phase."""
_Range: TypeAlias = "tuple[int, int | None]"
_Check: TypeAlias = "tuple[list[int], int]"
"""Values of a phase's axes, and the bytes traced there."""

_STEPS: Final = (2, 4, 8, 16, 32, 64, 128, 256)
_CLOSE: Final = 0.002
"""The share by which a checked point may be above the fit before steps are looked for."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A size that the grid varies."""

    name: str
    degree: int = 2
    """The highest power of it that a tensor's size has: 2 for scores of every pair of tokens."""
    unit: int = 1
    """The points traced are multiples of it."""
    spread: bool = False
    """Trace two more points, each twice the last: needed where a loop makes operators hard to tell apart."""
    least: int = 1
    """The smallest size that the model takes."""
    breaks: tuple[int, ...] = ()
    """Last sizes before the model takes another path: 1 for ``sequences``, as masks come with the second."""
    whole: bool = False
    """The model takes only multiples, as of rows where each prompt has several beams."""

    def ranges(self) -> list[_Range]:
        """The pieces, from the smallest sizes up."""
        ends = sorted({b for b in self.breaks if b >= self.least})
        starts = [self.least, *(end + 1 for end in ends)]
        return list(zip(starts, [*ends, None], strict=True))

    def points(self, low: int, high: int | None) -> list[int]:
        """``degree + 1`` sizes in a range, or a few more, if it has that many."""
        first = -(-low // self.unit) * self.unit
        grown = [0, 1, 3, 7, 15] if self.spread else [*range(self.degree + 1)]
        points = [first + i * self.unit for i in grown]
        if high is None or points[-1] <= high:
            return points
        low = max(low, high // 2 - 1)
        room = min(self.degree, high - low)
        return [low + (high - low) * i // room for i in range(room + 1)] if room else [high]

    def between(self, low: int, high: int | None) -> int:
        """A size that is no point of the grid, where the range has one."""
        points = self.points(low, high)
        further = self.unit if self.whole or self.unit == 1 else max(1, self.unit // 3)
        size = points[-1] + self.unit + further
        return size if high is None or size <= high else points[-1]


@dataclass(frozen=True, slots=True)
class PhaseOf:
    """A phase that each run has: for each axis that it depends on, the workload's name for it,
    and by how much that is above the axis."""

    name: str
    features: Mapping[str, tuple[str, int]]
    new_tokens: int = 0
    prompt_logprobs: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """Phases that come out of the same runs, and the axes of those."""

    axes: Sequence[Axis]
    phases: Sequence[PhaseOf]
    run: Run


def trace_groups(groups: Sequence[Group]) -> tuple[tuple[Phase, ...], FitCheck]:
    """Trace each group's grid, fit each phase, and check the fit at points between."""
    found: list[Phase] = []
    misses: list[tuple[float, Sizes]] = []
    for group in groups:
        traced = _Traced(group.run)
        for phase in group.phases:
            fitted, errors = _traced_phase(group.axes, phase, traced)
            found.append(fitted)
            misses += errors
    worst = max(misses, key=lambda miss: abs(miss[0]))
    return tuple(_needed(found)), FitCheck(len(misses), worst[0], worst[1])


def _traced_phase(
    axes: Sequence[Axis], phase: PhaseOf, traced: _Traced
) -> tuple[Phase, list[tuple[float, Sizes]]]:
    own = [axis for axis in axes if axis.name in phase.features]
    others = {axis.name: axis.points(*axis.ranges()[0])[0] for axis in axes if axis not in own}
    fitted = _fitted(phase, own, lambda sizes: traced(sizes | others)[phase.name])
    points = list(_checks(own))
    checks = [(_values(phase, own, s), _highest(traced(s | others)[phase.name])) for s in points]
    fitted, errors = _stepped(fitted, own, checks)
    return fitted, list(zip(errors, points, strict=True))


def _needed(phases: Sequence[Phase]) -> Iterator[Phase]:
    """Leave out a first step that is never above the later ones."""
    by_name = {phase.name: phase for phase in phases}
    for phase in phases:
        later = by_name.get("decode")
        if phase.name == "first step" and later and _never_above(phase, later):
            continue
        yield phase


def _never_above(first: Phase, later: Phase) -> bool:
    """At all sizes of a coarse grid: ``later`` has two tokens more, at least."""
    sizes = [1, 2, 3, 7, *(2**n for n in range(4, 19))]
    return all(later.at((r, t + 2)) >= first.at((r, t)) for r in (1, 2, 5, 64) for t in sizes)


class _Traced:
    """Trace each point once, whichever phases ask for it."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._known: dict[tuple[tuple[str, int], ...], Mapping[str, Record]] = {}

    def __call__(self, sizes: Sizes) -> Mapping[str, Record]:
        key = tuple(sorted(sizes.items()))
        if key not in self._known:
            self._known[key] = self._run(sizes)
        return self._known[key]


def _fitted(phase: PhaseOf, axes: Sequence[Axis], traced: Callable[[Sizes], Record]) -> Phase:
    degrees = tuple(axis.degree for axis in axes)
    shifts = [phase.features[axis.name][1] for axis in axes]
    pieces: list[Piece] = []
    for ranges in _in_order([axis.ranges() for axis in axes]):
        values = [axis.points(*bound) for axis, bound in zip(axes, ranges, strict=True)]
        records = [traced(sizes) for sizes in _grid(axes, values)]
        shifted = [[v + s for v in line] for line, s in zip(values, shifts, strict=True)]
        bounds = [(low + s, _end(high, s)) for (low, high), s in zip(ranges, shifts, strict=True)]
        peaks = fit_peaks(shifted, records, degrees, bounds)
        pieces.append(Piece(tuple(high for _, high in bounds), peaks))
    names = tuple(phase.features[axis.name][0] for axis in axes)
    steps = (1,) * len(axes)
    return Phase(phase.name, names, degrees, steps, tuple(pieces), phase.new_tokens, phase.prompt_logprobs)


def _in_order(ranges: Sequence[Sequence[_Range]]) -> Iterator[tuple[_Range, ...]]:
    return product(*ranges)


def _end(high: int | None, shift: int) -> int | None:
    return None if high is None else high + shift


def _grid(axes: Sequence[Axis], values: Sequence[Sequence[int]]) -> Iterator[Sizes]:
    """The points, the first axis changing fastest."""
    for point in product(*reversed(values)):
        yield {axis.name: v for axis, v in zip(axes, reversed(point), strict=True)}


def _checks(axes: Sequence[Axis]) -> Iterator[Sizes]:
    """In each piece one point that was not fitted."""
    for ranges in _in_order([axis.ranges() for axis in axes]):
        yield {axis.name: axis.between(*bound) for axis, bound in zip(axes, ranges, strict=True)}


def _values(phase: PhaseOf, axes: Sequence[Axis], sizes: Sizes) -> list[int]:
    return [sizes[axis.name] + phase.features[axis.name][1] for axis in axes]


def _highest(record: Record) -> int:
    return max(max(sizes) for sizes in record.values())


def _stepped(phase: Phase, axes: Sequence[Axis], checks: Sequence[_Check]) -> tuple[Phase, list[float]]:
    """``phase``, with the chunk that it pads to where the checks tell of one, and never below them."""
    errors = _errors(phase, checks)
    if min(errors) >= -_CLOSE:
        return phase, errors
    tries = [structs.replace(phase, steps=steps) for steps in _one_step(axes)]
    enough = [(e, t) for t in tries if min(e := _errors(t, checks)) >= -_CLOSE]
    if enough:
        best = min(enough, key=lambda pair: max(pair[0]))
        return best[1], best[0]
    return _raised(phase, 1 / (1 + min(errors))), errors


def _one_step(axes: Sequence[Axis]) -> Iterator[tuple[int, ...]]:
    """Steps along one axis, and along all axes like it, such as the sides of a picture."""
    kinds = [(axis.degree, axis.unit, axis.least) for axis in axes]
    for step, kind in product(_STEPS, dict.fromkeys(kinds)):
        yield tuple(step if k == kind else 1 for k in kinds)


def _errors(phase: Phase, checks: Sequence[_Check]) -> list[float]:
    return [float(phase.at(values)) / size - 1 for values, size in checks]


def _raised(phase: Phase, factor: float) -> Phase:
    pieces = [
        Piece(piece.upto, tuple(Peak(p.at, _times(p.coefficients, factor)) for p in piece.peaks))
        for piece in phase.pieces
    ]
    return structs.replace(phase, pieces=tuple(pieces))


def _times(coefficients: Sequence[Number], factor: float) -> tuple[Number, ...]:
    return tuple(c * factor for c in coefficients)
