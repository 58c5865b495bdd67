"""A fit that is never below what was seen."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_admission.estimators.envelope import Envelope

numbers = st.floats(0, 2**40)
rows = st.lists(st.tuples(st.tuples(numbers, numbers), st.integers(1, 2**40)), min_size=1, max_size=30)


@given(rows)
def test_what_was_seen_is_never_undercut(
    seen: list[tuple[tuple[float, float], int]],
) -> None:
    fit = Envelope(2)
    for features, taken in seen:
        fit.add(features, taken)
    for features, taken in seen:
        assert fit.bytes_for(features) >= taken * (1 - 1e-9) - 1
        assert fit.bytes_for([2 * x for x in features]) >= fit.bytes_for(features) - 1


def test_a_sum_of_features_is_found() -> None:
    draw, fit = random.Random(2), Envelope(3)
    for _ in range(40):
        features = (draw.randrange(1, 4000), draw.randrange(1, 900), 0)
        fit.add(features, 5_000_000 + 1000 * features[0] + 3000 * features[1])
    assert fit.bytes_for((2000, 500, 0)) == pytest.approx(5_000_000 + 2_000_000 + 1_500_000, rel=0.1)


def test_features_that_say_the_same_do_no_harm() -> None:
    fit = Envelope(2)
    for x in (10, 100, 1000):
        fit.add((x, x), 1000 * x)
    assert fit.bytes_for((500, 500)) == pytest.approx(500_000, rel=0.1)


def test_how_far_something_is_beyond_what_was_seen() -> None:
    fit = Envelope(2)
    fit.add((10, 0), 5)
    assert fit.reach((5, 0)) == 0.5
    assert fit.reach((20, 0)) == 2
    assert fit.reach((1, 7)) == 7


def test_rows_are_a_bounded_number_and_the_highest_stay() -> None:
    fit = Envelope(2)
    fit.add((2.0**30, 2.0**30), 2**50)
    for i in range(60):
        for j in range(10):
            fit.add((2.0**i, 2.0**j), 1 + i)
    assert len(fit) <= 128
    assert fit.bytes_for((2.0**30, 2.0**30)) >= 2**50


def test_it_is_kept_and_what_is_none_is_refused() -> None:
    fit, again = Envelope(2), Envelope(2)
    fit.add((10, 3), 5)
    again.restore(fit.to_dict())
    assert again.bytes_for((10, 3)) == fit.bytes_for((10, 3))
    good, bad = [1, 2], ([1], [1, -2], [1, float("nan")], ["x", 1])
    rows = [*([each, 2, good] for each in bad), *([good, 2, each] for each in bad), 5, [good, -1, good]]
    for row in rows:
        with pytest.raises((TypeError, ValueError)):
            Envelope(2).restore({"rows": [row], "top": [1, 1]})


def test_what_tells_how_large_a_request_is_need_not_be_what_is_fitted() -> None:
    fit = Envelope(1)
    fit.add((10,), 5, size=(100,))
    assert fit.reach((100,)) == 1
    assert fit.reach((200,)) == 2


def test_how_far_something_is_from_the_nearest_that_asked_for_as_much_of_everything() -> None:
    fit = Envelope(2)
    fit.add((100, 1), 5)
    fit.add((1, 100), 5, size=(2, 200))
    assert fit.distance((50, 1)) == 1
    assert fit.distance((100, 2)) == 2
    assert fit.distance((2, 200)) == 1
    assert fit.distance((100, 100)) == 50  # as much of each was seen, but never together


def test_the_middle_of_what_was_seen_is_no_higher_than_what_is_charged() -> None:
    fit = Envelope(1)
    for x, taken in ((10, 1000), (10, 1200), (20, 1900), (40, 4200)):
        fit.add((x,), taken)
    assert fit.middle_of((70,), 3) <= 3 * fit.bytes_for((70 / 3,)) + 1
    assert fit.middle_of((70,), 3) == pytest.approx(1000 + 2000 + 4000, rel=0.2)


def test_the_largest_is_what_the_most_expensive_one_takes() -> None:
    fit = Envelope(2)
    assert fit.largest == 0
    fit.add((100, 1), 500)
    fit.add((1, 100), 700)
    assert 700 <= fit.largest < 1000
