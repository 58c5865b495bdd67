"""Least squares with coefficients that may not be negative, in exact rational arithmetic.

Small on purpose: tens of columns, thousands of rows, run once at start-up. Exactness is
what makes it robust: columns of very different size (1, tokens, tokens x batch) need no
scaling and a dependent column is found as such. Knows nothing of workloads.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

Row = Sequence[Fraction]


def fit_nonnegative(rows: Sequence[Row], targets: Row) -> list[Fraction]:
    """Coefficients c, least in squared error of ``rows @ c`` against ``targets``, none negative.

    That of the first column may be negative. Lawson and Hanson's active set.
    Raises ``ValueError`` when the columns are not independent.
    """
    gram = gram_of(rows)
    moment = [
        sum((r[i] * t for r, t in zip(rows, targets, strict=True)), Fraction(0)) for i in range(len(gram))
    ]
    solve(gram, moment)  # raises when the columns are dependent
    chosen = {0}
    current = _solve_for(gram, moment, chosen)
    while gains := _gains(gram, moment, current, chosen):
        chosen.add(max(gains, key=lambda i: gains[i]))
        current = _settle(gram, moment, current, chosen)
    return current


def solve(matrix: Sequence[Row], vector: Row) -> list[Fraction]:
    """The x of ``matrix @ x = vector``. Raises ``ValueError`` when there is not exactly one."""
    size = len(matrix)
    work = [[*row, value] for row, value in zip(matrix, vector, strict=True)]
    for column in range(size):
        pivot = next((i for i in range(column, size) if work[i][column]), None)
        if pivot is None:
            raise ValueError(f"column {column} depends on those before it")
        work[column], work[pivot] = work[pivot], work[column]
        lead = work[column][column]
        work[column] = [value / lead for value in work[column]]
        for i in range(size):
            if i != column and (factor := work[i][column]):
                work[i] = [a - factor * b for a, b in zip(work[i], work[column], strict=True)]
    return [row[size] for row in work]


def inverse(matrix: Sequence[Row]) -> list[list[Fraction]]:
    """The inverse of a symmetric ``matrix``. Raises ``ValueError`` when there is none."""
    size = range(len(matrix))
    return [solve(matrix, [Fraction(i == j) for j in size]) for i in size]


def gram_of(rows: Sequence[Row]) -> list[list[Fraction]]:
    """Sums over ``rows`` of the product of each two columns."""
    size = range(len(rows[0]))
    return [[sum((r[i] * r[j] for r in rows), Fraction(0)) for j in size] for i in size]


def _gains(gram: Sequence[Row], moment: Row, current: Row, chosen: set[int]) -> dict[int, Fraction]:
    """By how much the error would fall, to first order, for each column that is not in use."""
    slopes = {
        i: moment[i] - sum((g * c for g, c in zip(gram[i], current, strict=True)), Fraction(0))
        for i in range(len(gram))
        if i not in chosen
    }
    return {i: slope for i, slope in slopes.items() if slope > 0}


def _settle(gram: Sequence[Row], moment: Row, current: list[Fraction], chosen: set[int]) -> list[Fraction]:
    """Move to the best point on ``chosen``, dropping the columns that would turn negative."""
    while True:
        target = _solve_for(gram, moment, chosen)
        falling = [i for i in chosen if i and target[i] <= 0]
        if not falling:
            return target
        step = min(current[i] / (current[i] - target[i]) for i in falling)
        current = [c + step * (t - c) for c, t in zip(current, target, strict=True)]
        chosen.difference_update({i for i in falling if current[i] <= 0})


def _solve_for(gram: Sequence[Row], moment: Row, chosen: set[int]) -> list[Fraction]:
    columns = sorted(chosen)
    found = solve([[gram[i][j] for j in columns] for i in columns], [moment[i] for i in columns])
    values = dict(zip(columns, found, strict=True))
    return [values.get(i, Fraction(0)) for i in range(len(gram))]
