"""How far the fit of a ``Linear`` can be trusted: its errors, its reach, and rows that don't belong.

Owns the verdict on a fit. How a fit is solved is in ``leastsquares``, what it is used for in ``linear``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import msgspec

from gpu_admission.estimators.leastsquares import Row, fit_nonnegative, gram_of, inverse

_AMPLIFIED = 30.0
"""Above this, an error of 1 % in the rows may move a term by a third of what it adds."""
_WILD = 10
"""Times the usual error of the other rows; and a tenth of the row's own size."""


class FitError(msgspec.Struct, frozen=True):
    """How far a fit is from the rows it was made from, in bytes; over-estimates are positive."""

    worst: int
    """The error that is largest in size."""
    rms: int
    """Root of the mean squared error."""
    most_under: int
    """The largest under-estimate, as a positive number; 0 when no row is above the fit."""
    worst_row: Mapping[str, Any]
    """The features of the row with the largest error."""
    smallest: int = 0
    """Bytes of the smallest row: nothing is charged less."""
    reach: Mapping[str, float] = {}
    """The most of each feature in the rows: anything beyond was never seen."""
    notes: tuple[str, ...] = ()
    """What speaks against the fit: terms that can hardly be told apart, a row unlike the others."""


class Fit(NamedTuple):
    """Rows as a fit sees them: a matrix with a column of ones before the terms, and the sizes."""

    terms: Sequence[str]
    matrix: Sequence[Row]
    sizes: Row
    values: Sequence[Mapping[str, Any]]


def faults(fit: Fit) -> tuple[str, ...]:
    """One sentence for each fault that makes a fit to these rows doubtful; see ``FitError.notes``."""
    return tuple(said for said in (_vague(fit), _wild(fit)) if said)


def saturated(fit: Fit) -> tuple[str, ...]:
    """A note where the rows are only as many as the coefficients, which then fit any rows at all."""
    if len(fit.sizes) > len(fit.terms) + 1:
        return ()
    return (f"{len(fit.sizes)} rows for {len(fit.terms) + 1} coefficients: nothing shows how well they fit",)


def _vague(fit: Fit) -> str:
    gram = gram_of(fit.matrix)
    inverted = inverse(gram)
    names = ("the constant", *fit.terms)
    by, name = max((math.sqrt(gram[i][i] * inverted[i][i]), name) for i, name in enumerate(names))
    if by <= _AMPLIFIED:
        return ""
    return (
        f"the rows hardly tell {name} from the other terms: an error of 1 % in them may be "
        f"{by:.0f} % there; measure rows that differ more"
    )


def _wild(fit: Fit) -> str:
    """A row that a fit to all other rows misses by far more than it misses any of those."""
    if len(fit.sizes) < len(fit.terms) + 3:
        return ""
    at = _most_unlike(fit)
    others = [i for i in range(len(fit.sizes)) if i != at]
    try:
        found = fit_nonnegative([fit.matrix[i] for i in others], [fit.sizes[i] for i in others])
    except ValueError:  # without this row, the terms can't be told apart
        return ""
    off = [float(size - _dot(row, found)) for row, size in zip(fit.matrix, fit.sizes, strict=True)]
    usual = math.sqrt(sum(off[i] ** 2 for i in others) / (len(others) - len(fit.terms) - 1 or 1))
    if abs(off[at]) <= max(_WILD * usual, float(fit.sizes[at]) / 10):
        return ""
    return (
        f"the row {dict(fit.values[at])} took {int(fit.sizes[at]):,} bytes where the others say "
        f"{float(fit.sizes[at]) - off[at]:,.0f}: measure it again, or leave it out"
    )


def _most_unlike(fit: Fit) -> int:
    """The row whose removal lets a plain fit come nearest to the others."""
    inverted = inverse(gram_of(fit.matrix))
    columns = range(len(inverted))
    moment = [
        sum((r[i] * t for r, t in zip(fit.matrix, fit.sizes, strict=True)), Fraction(0)) for i in columns
    ]
    plain = [_dot(row, moment) for row in inverted]

    def gained(i: int) -> float:
        row = fit.matrix[i]
        own = sum((row[j] * _dot(inverted[j], row) for j in columns), Fraction(0))
        return 0.0 if own >= 1 else float((fit.sizes[i] - _dot(row, plain)) ** 2 / (1 - own))

    return max(range(len(fit.sizes)), key=gained)


def _dot(row: Row, vector: Row) -> Fraction:
    return sum((a * b for a, b in zip(row, vector, strict=True)), Fraction(0))
