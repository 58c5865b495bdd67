"""The highest of many polynomials, as it runs for each request."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_admission.estimators.traced.compiled import compiled
from gpu_admission.estimators.traced.peaks import product_names, products

numbers = st.one_of(st.just(0), st.integers(-9, 9), st.floats(-9, 9, allow_subnormal=False))


@given(st.data())
def test_the_function_is_the_highest_polynomial_in_the_range_of_its_sizes(
    data: st.DataObject,
) -> None:
    degrees = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=3))
    steps = data.draw(st.tuples(*(st.sampled_from([1, 8]) for _ in degrees)))
    count = math.prod(degree + 1 for degree in degrees)
    peak = st.lists(numbers, min_size=count, max_size=count)
    limit = st.tuples(*(st.one_of(st.none(), st.integers(1, 40)) for _ in degrees))
    pieces: Any = data.draw(
        st.lists(st.tuples(limit, st.lists(peak, min_size=1, max_size=3)), min_size=1, max_size=3)
    )
    values = data.draw(st.tuples(*(st.integers(0, 60) for _ in degrees)))
    size, place, powers = compiled(pieces, degrees, steps)(values)
    rounded = [-(-value // step) * step for value, step in zip(values, steps, strict=True)]
    assert list(powers) == products(rounded, degrees)
    assert len(product_names(["a"] * len(degrees), degrees)) == len(powers)
    first, peaks = _piece(pieces, rounded)
    sums = [sum(c * p for c, p in zip(peak, powers, strict=True)) for peak in peaks]
    assert math.isclose(size, max(sums), rel_tol=1e-9, abs_tol=1e-6)
    assert math.isclose(sums[place - first], max(sums), rel_tol=1e-9, abs_tol=1e-6)


def _piece(pieces: Any, values: Sequence[int]) -> tuple[int, Any]:
    """The place of the first peak in that range, and its peaks."""
    first = 0
    for limits, peaks in pieces[:-1]:
        if all(most is None or value <= most for value, most in zip(values, limits, strict=True)):
            return first, peaks
        first += len(peaks)
    return first, pieces[-1][1]


@pytest.mark.parametrize("number", [math.inf, math.nan])
def test_a_coefficient_that_is_no_number_is_refused(number: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        compiled([((None,), [[1, number]])], [1], [1])
