"""Least squares with coefficients that may not be negative, against trying every set of columns."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_admission.estimators.leastsquares import fit_nonnegative, solve

Matrix = Sequence[Sequence[Fraction]]


def squares(rows: Matrix, targets: Sequence[Fraction], fit: Sequence[Fraction]) -> Fraction:
    sums = [sum((a * c for a, c in zip(row, fit, strict=True)), Fraction(0)) for row in rows]
    return sum(((s - t) ** 2 for s, t in zip(sums, targets, strict=True)), Fraction(0))


def best(rows: Matrix, targets: Sequence[Fraction]) -> Fraction:
    """The least error of all sets of columns whose own solution is not negative; the first is always in."""
    found = []
    width = len(rows[0])
    for count in range(width):
        for others in combinations(range(1, width), count):
            columns = [0, *others]
            gram = [[sum((r[i] * r[j] for r in rows), Fraction(0)) for j in columns] for i in columns]
            moment = [
                sum((r[i] * t for r, t in zip(rows, targets, strict=True)), Fraction(0)) for i in columns
            ]
            values = dict(zip(columns, solve(gram, moment), strict=True))
            if all(values[i] >= 0 for i in others):
                fit = [values.get(i, Fraction(0)) for i in range(width)]
                found.append(squares(rows, targets, fit))
    return min(found)


cells = st.integers(-4, 4).map(Fraction)


@given(
    rows=st.lists(st.tuples(st.just(Fraction(1)), cells, cells, cells), min_size=4, max_size=7),
    targets=st.lists(st.integers(-9, 9).map(Fraction), min_size=7, max_size=7),
)
def test_no_other_set_of_columns_fits_better(rows: Matrix, targets: Sequence[Fraction]) -> None:
    targets = targets[: len(rows)]
    try:
        fit = fit_nonnegative(rows, targets)
    except ValueError:
        return
    assert all(c >= 0 for c in fit[1:])
    assert squares(rows, targets, fit) == best(rows, targets)


def test_a_column_that_came_in_may_have_to_leave_again() -> None:
    rows = [
        [Fraction(v) for v in row] for row in ([1, 2, -2, -2], [1, 4, -1, -4], [1, -1, 4, 4], [1, -1, 2, 4])
    ]
    targets = [Fraction(v) for v in (2, 9, 2, 5)]
    fit = fit_nonnegative(rows, targets)
    assert squares(rows, targets, fit) == best(rows, targets)


def test_columns_of_very_different_size_are_told_apart() -> None:
    rows = [[Fraction(1), Fraction(10**12 + i), Fraction(i * i)] for i in range(4)]
    targets = [Fraction(5) + 3 * row[1] + 7 * row[2] for row in rows]
    assert fit_nonnegative(rows, targets) == [5, 3, 7]


def test_columns_that_depend_on_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="depends"):
        fit_nonnegative([[Fraction(1), Fraction(2)]] * 3, [Fraction(1)] * 3)
