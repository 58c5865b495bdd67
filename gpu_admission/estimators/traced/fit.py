"""From traces at a few sizes to polynomials that hold at all of them.

The same operator runs at each size, and what is alive after it is a sum of tensors, whose
sizes are products of the axes: so each place gets its own polynomial, exactly, and the peak
is the highest of them. Owns that step, and the choice of the few that are ever highest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import product
from operator import gt, mul
from typing import Final, TypeAlias

from gpu_admission.estimators.leastsquares import solve
from gpu_admission.estimators.traced.compiled import Number
from gpu_admission.estimators.traced.peaks import Peak, products

Place: TypeAlias = "tuple[str, str]"
Record: TypeAlias = Mapping[Place, Sequence[int]]
Scaled: TypeAlias = "tuple[int, ...]"
"""Coefficients, times a denominator that all coefficients of a fit share."""

_LARGEST: Final = 2**21
"""Limit assumed for an axis without one, when looking for peaks that are ever highest."""
_ROUNDING: Final = 64
"""Bytes by which a point may be off its polynomial, since some sizes are rounded."""
_ANY: Final = "any operator"


def fit_peaks(
    values: Sequence[Sequence[int]],
    records: Sequence[Record],
    degrees: Sequence[int],
    bounds: Sequence[tuple[int, int | None]],
) -> tuple[Peak, ...]:
    """The peaks of one piece, from a record at each point of the grid ``values``.

    Each axis has ``degree + 1`` values, fewer where its range holds fewer; records come with the
    first axis changing fastest. ``bounds`` are the range that the piece is for.
    """
    places = {sizes: at for at, sizes in aligned(records).items()}
    shape = [min(len(axis), degree + 1) for axis, degree in zip(values, degrees, strict=True)]
    through = _Through(values, shape)
    candidates: dict[Scaled, str] = {}
    for sizes, at in places.items():
        for polynomial in through(sizes):
            candidates.setdefault(polynomial, at)
    kept = _ever_highest(list(candidates), [length - 1 for length in shape], bounds)
    return tuple(Peak(candidates[c], _padded(c, through.scale, shape, degrees)) for c in kept)


def aligned(records: Sequence[Record]) -> dict[str, tuple[int, ...]]:
    """Live bytes at each place, by record. A place that runs equally often in each record counts run by
    run, others count at their highest, and one that some records lack with the rest of its module."""
    rows: dict[str, tuple[int, ...]] = {}
    loose: set[Place] = set()
    for place in dict.fromkeys(place for record in records for place in record):
        runs = [record.get(place, ()) for record in records]
        if not all(runs):
            loose.add(place)
        elif len({len(r) for r in runs}) == 1:
            rows.update({f"{_name(place)} #{i}": sizes for i, sizes in enumerate(zip(*runs, strict=True))})
        else:
            rows[_name(place)] = tuple(map(max, runs))
    return rows | _by_module(records, loose)


def _by_module(records: Sequence[Record], loose: set[Place]) -> dict[str, tuple[int, ...]]:
    found: dict[str, list[int]] = {}
    for i, record in enumerate(records):
        for place in loose & record.keys():
            highest = found.setdefault(place[0], [0] * len(records))
            highest[i] = max(highest[i], *record[place])
    whole = [max((sizes[i] for sizes in found.values()), default=0) for i in range(len(records))]
    rows = {f"{_ANY} in {module or 'the model'}": tuple(s) for module, s in found.items() if all(s)}
    if found and len(rows) < len(found) and all(whole):
        rows[_ANY] = tuple(whole)
    return rows


def _name(place: Place) -> str:
    module, operator = place
    return f"{operator} in {module}" if module else operator


class _Through:
    """The polynomials through the sizes of a place: one, where it goes through spare points too.

    A place that stands for the highest of several operators, as in a loop, may have no such polynomial:
    then there is a straight line between neighbouring points of the axis that has a spare point.
    """

    def __init__(self, values: Sequence[Sequence[int]], shape: Sequence[int]) -> None:
        self._values = values
        self._shape = shape
        self._spare = next((i for i, axis in enumerate(values) if len(axis) > shape[i]), None)
        starts = [len(axis) - length for axis, length in zip(values, shape, strict=True)]
        self._whole = _Window(values, starts, shape)
        self.scale = self._whole.scale
        self._straight = list(self._pieces(starts))
        self.scale = math.lcm(self.scale, *(piece.scale for piece in self._straight))

    def __call__(self, sizes: Sequence[int]) -> list[Scaled]:
        polynomial = self._whole(sizes)
        if self._spare is None or self._whole.holds(polynomial, sizes):
            return [_times(polynomial, self.scale // self._whole.scale)]
        return [_times(self._full(piece(sizes)), self.scale // piece.scale) for piece in self._straight]

    def _pieces(self, starts: Sequence[int]) -> Iterator[_Window]:
        spare = self._spare
        if spare is None:
            return
        short = [2 if i == spare else length for i, length in enumerate(self._shape)]
        for first in range(len(self._values[spare]) - 1):
            yield _Window(self._values, [first if i == spare else s for i, s in enumerate(starts)], short)

    def _full(self, polynomial: Scaled) -> Scaled:
        """With zeros for the higher powers of the spare axis."""
        spare = self._spare or 0
        short = [2 if i == spare else length for i, length in enumerate(self._shape)]
        known = dict(zip(product(*(range(n) for n in reversed(short))), polynomial, strict=True))
        return tuple(known.get(powers, 0) for powers in product(*(range(n) for n in reversed(self._shape))))


class _Window:
    """A part of the grid, with as many points in each axis as the polynomial has powers."""

    def __init__(self, values: Sequence[Sequence[int]], starts: Sequence[int], shape: Sequence[int]) -> None:
        chosen = [range(start, start + length) for start, length in zip(starts, shape, strict=True)]
        every = list(product(*(range(len(axis)) for axis in reversed(values))))
        inside = set(product(*reversed(chosen)))
        self._inside = [i for i, point in enumerate(every) if point in inside]
        self._outside = [
            (
                i,
                products(
                    [axis[p] for axis, p in zip(values, reversed(point), strict=True)], [n - 1 for n in shape]
                ),
            )
            for i, point in enumerate(every)
            if point not in inside
            and all(p + 1 >= part[0] for p, part in zip(reversed(point), chosen, strict=True))
        ]
        inverses = [_inverse([axis[i] for i in part]) for axis, part in zip(values, chosen, strict=True)]
        self._inverses = [rows for rows, _ in inverses]
        self.scale = math.prod(denominator for _, denominator in inverses)

    def __call__(self, sizes: Sequence[int]) -> Scaled:
        return _interpolate(self._inverses, [sizes[i] for i in self._inside])

    def holds(self, polynomial: Scaled, sizes: Sequence[int]) -> bool:
        """Whether it also gives the sizes just before the window; the smallest may be a special case."""
        return all(
            abs(sum(map(mul, polynomial, powers)) - sizes[i] * self.scale) <= _ROUNDING * self.scale
            for i, powers in self._outside
        )


def _inverse(values: Sequence[int]) -> tuple[list[list[int]], int]:
    """Of the matrix of powers of ``values``: the row of each power, over one denominator."""
    size = len(values)
    matrix = [[Fraction(v) ** n for n in range(size)] for v in values]
    columns = [solve(matrix, [Fraction(i == j) for j in range(size)]) for i in range(size)]
    denominator = math.lcm(*(f.denominator for column in columns for f in column))
    return [[int(f * denominator) for f in row] for row in zip(*columns, strict=True)], denominator


def _interpolate(inverses: Sequence[Sequence[Sequence[int]]], sizes: Sequence[int]) -> Scaled:
    """The polynomial through ``sizes``, times the denominators: one axis after the other."""
    work = list(sizes)
    stride = 1
    for inverse in inverses:
        length = len(inverse)
        for start in _starts(len(work), stride, length):
            line = [work[start + i * stride] for i in range(length)]
            for i, row in enumerate(inverse):
                work[start + i * stride] = sum(map(mul, row, line))
        stride *= length
    return tuple(work)


def _times(polynomial: Scaled, factor: int) -> Scaled:
    return polynomial if factor == 1 else tuple(c * factor for c in polynomial)


def _starts(size: int, stride: int, length: int) -> Iterable[int]:
    return (block + i for block in range(0, size, stride * length) for i in range(stride))


def _ever_highest(
    candidates: Sequence[Scaled], degrees: Sequence[int], bounds: Sequence[tuple[int, int | None]]
) -> list[Scaled]:
    """The peaks that are the highest anywhere in ``bounds``, found by trying sizes all over it."""
    samples = [products(point, degrees) for point in product(*(_spread(*bound) for bound in bounds))]
    left = candidates
    for sample in (samples[-1], samples[0], samples[len(samples) // 2]):
        top = max(left, key=_at(sample))
        left = [c for c in left if c is top or any(map(gt, c, top))]
    return list(dict.fromkeys(max(left, key=_at(sample)) for sample in samples))


def _at(sample: Sequence[Number]) -> Callable[[Scaled], Number]:
    return lambda coefficients: sum(map(mul, coefficients, sample))


def _spread(low: int, high: int | None) -> list[int]:
    """Sizes from ``low`` to ``high``, each some 1.4 times the last."""
    top = _LARGEST if high is None else high
    found = {low, top}
    size = float(low)
    while (size := size * 1.4142) < top:
        found.add(round(size))
    return sorted(found)


def _padded(scaled: Scaled, scale: int, shape: Sequence[int], degrees: Sequence[int]) -> tuple[Number, ...]:
    """Plain coefficients, with zeros for the powers that this piece was too small to need."""
    known = dict(zip(product(*(range(n) for n in reversed(shape))), scaled, strict=True))
    order = product(*(range(d + 1) for d in reversed(degrees)))
    return tuple(_plain(Fraction(known.get(powers, 0), scale)) for powers in order)


def _plain(value: Fraction) -> Number:
    return int(value) if value.denominator == 1 else float(value)
