"""``Linear``: its terms, and fits to measured rows."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_admission.estimators import Linear
from gpu_admission.sizes import MAX_BYTES
from gpu_admission.types import Workload
from tests.estimators.published import table

GB = 10**9
SEED = [({"prompt_tokens": n, "sequences": b}, f"{size}GB") for n, b, size in table("seed-qwen2-1.5b")]
TERMS = ["prompt_tokens", "sequences", "prompt_tokens*sequences"]


def test_a_coefficient_is_bytes_for_each_unit_of_its_feature() -> None:
    linear = Linear({"prompt_tokens": "0.5KiB", "prompt_tokens * sequences": 3}, constant="1MiB")
    estimate = linear.estimate(Workload(prompt_tokens=10, sequences=4))
    assert estimate.parts == {"constant": 2**20, "prompt_tokens": 5120, "prompt_tokens * sequences": 120}
    assert estimate.bytes == 2**20 + 5120 + 120


def test_products_of_ints_are_exact() -> None:
    linear = Linear({"prompt_tokens*new_tokens": 3})
    assert linear.estimate(Workload(prompt_tokens=2**29 + 1, new_tokens=2**28 + 1)).bytes == 3 * (
        2**29 + 1
    ) * (2**28 + 1)


@pytest.mark.parametrize(
    ("name", "workload", "value"),
    [
        ("tokens", Workload(prompt_tokens=3, new_tokens=4), 7),
        ("pixels", Workload(width=3, height=4), 12),
        ("images", Workload(images=((1, 1), (2, 2))), 2),
        ("total_prompt_tokens", Workload(prompt_tokens=5), 5),
        ("total_prompt_tokens", Workload(prompt_tokens=5, total_prompt_tokens=9), 9),
        ("audio_seconds", Workload(audio_seconds=1.5), 1.5),
        ("frames", Workload(features={"frames": 16}), 16),
        ("pixels", Workload(width=3, height=4, features={"pixels": 5}), 5),
        ("frames", Workload(features={"frames": -16}), 0),
    ],
)
def test_features_are_sizes_of_the_workload_what_follows_from_them_and_named_numbers(
    name: str, workload: Workload, value: float
) -> None:
    assert Linear({name: 1000}, constant=1).estimate(workload).bytes == 1 + 1000 * value


def test_a_feature_that_the_workload_lacks_is_an_error_and_not_zero() -> None:
    with pytest.raises(LookupError, match="frames"):
        Linear({"frames": 1}).estimate(Workload())


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e300])
def test_a_feature_that_is_no_size_is_the_most_there_is(value: float) -> None:
    assert Linear({"frames": 1.5}).estimate(Workload(features={"frames": value})).bytes == MAX_BYTES


@pytest.mark.parametrize("seconds", [math.nan, math.inf])
def test_audio_without_end_is_the_most_there_is(seconds: float) -> None:
    assert Linear({"audio_seconds": 1.5}).estimate(Workload(audio_seconds=seconds)).bytes == MAX_BYTES


def test_values_that_were_assumed_are_in_the_notes() -> None:
    estimate = Linear({"new_tokens": 1}).estimate(Workload(new_tokens=5, defaulted=("max_tokens",)))
    assert estimate.notes == ("max_tokens was absent: a default was assumed",)


@pytest.mark.parametrize(
    ("terms", "complaint"),
    [
        ({"prompt_tokens": -1}, "prompt_tokens"),
        ({"prompt_tokens": -0.5}, "prompt_tokens"),
        ({"prompt_tokens": math.nan}, "prompt_tokens"),
        ({"prompt_tokens": "many"}, "prompt_tokens"),
        ({"prompt_tokens": True}, "prompt_tokens"),
        ({"prompt tokens": 1}, "prompt tokens"),
        ({"prompt_tokens*": 1}, "''"),
    ],
)
def test_terms_that_make_no_sense_are_named(terms: dict[str, Any], complaint: str) -> None:
    with pytest.raises((TypeError, ValueError), match=complaint):
        Linear(terms)


def test_a_negative_constant_takes_off_but_never_below_a_byte() -> None:
    linear = Linear({"prompt_tokens": 10}, constant=-100)
    assert linear.estimate(Workload(prompt_tokens=30)).bytes == 200
    assert linear.estimate(Workload(prompt_tokens=1)).bytes == 1


def test_the_seed_table_fits_with_a_product_term_to_a_quarter_of_a_gigabyte() -> None:
    fit = Linear.fit(SEED, TERMS)
    assert fit.error is not None
    assert abs(fit.error.worst) <= 0.25 * GB
    assert fit.error.rms <= 0.15 * GB
    assert fit.error.worst_row == {"prompt_tokens": 512, "sequences": 2}
    for (values, _), (_, _, size) in zip(SEED, table("seed-qwen2-1.5b"), strict=True):
        assert abs(fit.estimate(Workload(**values)).bytes - size * GB) <= 0.25 * GB


def test_without_the_product_the_seed_table_does_not_fit() -> None:
    fit = Linear.fit(SEED, ["prompt_tokens", "sequences"])
    assert fit.error is not None
    assert abs(fit.error.worst) > 0.8 * GB


def test_a_fit_can_be_told_never_to_fall_below_a_row() -> None:
    fit = Linear.fit(SEED, TERMS, never_below=True)
    assert fit.error is not None
    assert fit.error.most_under == 0
    for values, size in SEED:
        assert fit.estimate(Workload(**values)).bytes >= float(size.removesuffix("GB")) * GB


def test_a_fit_finds_what_made_the_rows() -> None:
    rows = [
        ({"pixels": p, "frames": f}, 1000 + 7 * p + 3 * p * f) for p in (10, 500, 10**6) for f in (1, 2, 16)
    ]
    fit = Linear.fit(rows, ["pixels", "pixels*frames"])
    assert (fit.constant, dict(fit.coefficients)) == (1000, {"pixels": 7, "pixels*frames": 3})


def test_a_fit_never_takes_less_for_more() -> None:
    falling = [
        ({"prompt_tokens": n, "sequences": s}, 10**6 - 100 * n + 50 * s)
        for n in (1, 50, 900)
        for s in (1, 9, 20)
    ]
    fit = Linear.fit(falling, ["prompt_tokens", "sequences"])
    assert fit.coefficients["prompt_tokens"] == 0
    assert fit.coefficients["sequences"] == pytest.approx(50)


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(1, 1000)), min_size=4, max_size=12
    )
)
def test_no_fit_with_coefficients_that_are_not_negative_is_better(rows: list[tuple[int, int, int]]) -> None:
    measured = [({"prompt_tokens": a, "new_tokens": b}, size) for a, b, size in rows]
    try:
        fit = Linear.fit(measured, ["prompt_tokens", "new_tokens"])
    except ValueError:
        return
    exact = {name: float(c) for name, c in fit.coefficients.items()}

    def squares(constant: float, a: float, b: float) -> float:
        return sum((constant + a * x + b * y - size) ** 2 for x, y, size in rows)

    best = squares(fit.constant, exact["prompt_tokens"], exact["new_tokens"])
    for step in (-1.0, 1.0):
        a, b = max(0.0, exact["prompt_tokens"] + step), max(0.0, exact["new_tokens"] + step)
        assert best <= squares(fit.constant, a, exact["new_tokens"]) + 2000 * len(rows)
        assert best <= squares(fit.constant, exact["prompt_tokens"], b) + 2000 * len(rows)


def test_rows_that_cannot_tell_terms_apart_are_refused() -> None:
    rows = [({"prompt_tokens": n, "sequences": n}, 10 * n) for n in (1, 2, 3)]
    with pytest.raises(ValueError, match="apart"):
        Linear.fit(rows, ["prompt_tokens", "sequences"])
    with pytest.raises(ValueError, match="at least one"):
        Linear.fit([], ["prompt_tokens"])


def test_a_fit_can_be_written_down_and_made_again() -> None:
    fit = Linear.fit(SEED, TERMS)
    again = Linear(dict(fit.coefficients), constant=fit.constant)
    workload = Workload(prompt_tokens=700, sequences=3)
    assert again.estimate(workload) == fit.estimate(workload)
