"""From traces at a few sizes to polynomials that hold at all of them.

The same operator runs at each size, and what is alive after it is a sum of tensors, whose
sizes are products of the axes: so each place gets its own polynomial, exactly, and the peak
is the highest of them. Owns that step, and the choice of the few that are ever highest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import product
from operator import mul
from typing import Final, TypeAlias

from gpu_admission.estimators.leastsquares import solve
from gpu_admission.estimators.traced.peaks import Number, Peak, products

Place: TypeAlias = "tuple[str, str]"
Record: TypeAlias = Mapping[Place, Sequence[int]]
Coefficients: TypeAlias = "tuple[Fraction, ...]"

_LARGEST: Final = 2**21
"""Of an axis without a limit, where it is asked which peaks are ever highest."""
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
    rows = aligned(records)
    candidates: dict[Coefficients, str] = {}
    inverses = [_inverse(axis) for axis in values]
    for sizes, at in {sizes: at for at, sizes in rows.items()}.items():
        candidates.setdefault(_interpolate(inverses, sizes), at)
    kept = _ever_highest(candidates, [len(v) - 1 for v in values], bounds)
    shape = [len(v) for v in values]
    return tuple(Peak(candidates[c], _padded(c, shape, degrees)) for c in kept)


def aligned(records: Sequence[Record]) -> dict[str, tuple[int, ...]]:
    """Live bytes at each place, by record. A place that runs as often in each counts run by run,
    others at their highest, and what is not in all of them with the rest of its module."""
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


def _inverse(values: Sequence[int]) -> list[list[Fraction]]:
    """Of the matrix of powers of ``values``: the row of each power."""
    size = len(values)
    matrix = [[Fraction(v) ** n for n in range(size)] for v in values]
    columns = [solve(matrix, [Fraction(i == j) for j in range(size)]) for i in range(size)]
    return [list(row) for row in zip(*columns, strict=True)]


def _interpolate(inverses: Sequence[Sequence[Sequence[Fraction]]], sizes: Sequence[int]) -> Coefficients:
    """The polynomial through ``sizes``: one axis after the other."""
    work: list[Fraction] = [Fraction(s) for s in sizes]
    stride = 1
    for inverse in inverses:
        length = len(inverse)
        for start in _starts(len(work), stride, length):
            line = [work[start + i * stride] for i in range(length)]
            for i, row in enumerate(inverse):
                work[start + i * stride] = sum(map(mul, row, line), Fraction(0))
        stride *= length
    return tuple(work)


def _starts(size: int, stride: int, length: int) -> Iterable[int]:
    return (block + i for block in range(0, size, stride * length) for i in range(stride))


def _ever_highest(
    candidates: Mapping[Coefficients, str],
    degrees: Sequence[int],
    bounds: Sequence[tuple[int, int | None]],
) -> list[Coefficients]:
    samples = [products(point, degrees) for point in product(*(_spread(*bound) for bound in bounds))]
    left = list(candidates)
    for sample in (samples[-1], samples[0], samples[len(samples) // 2]):
        top = max(left, key=_at(sample))
        left = [c for c in left if c is top or any(a > b for a, b in zip(c, top, strict=True))]
    plain = {tuple(map(float, c)): c for c in left}
    return list(dict.fromkeys(plain[max(plain, key=_at(sample))] for sample in samples))


def _at(sample: Sequence[Number]) -> Callable[[Sequence[Number]], Number]:
    return lambda coefficients: sum(map(mul, coefficients, sample))


def _spread(low: int, high: int | None) -> list[int]:
    """Sizes from ``low`` to ``high``, each some 1.4 times the last."""
    top = _LARGEST if high is None else high
    found = {low, top}
    size = float(low)
    while (size := size * 1.4142) < top:
        found.add(round(size))
    return sorted(found)


def _padded(coefficients: Coefficients, shape: Sequence[int], degrees: Sequence[int]) -> tuple[Number, ...]:
    """With zeros for the powers that this piece was too small to need."""
    known = dict(zip(product(*(range(n) for n in reversed(shape))), coefficients, strict=True))
    order = product(*(range(d + 1) for d in reversed(degrees)))
    return tuple(_plain(known.get(powers, Fraction(0))) for powers in order)


def _plain(value: Fraction) -> Number:
    return int(value) if value.denominator == 1 else float(value)
