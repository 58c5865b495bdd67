"""Whatever stands where a number should gives a finite number, or a refusal that names it."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_admission.bodies.numbers import CEILING, capped, fraction, positive, positive_option, whole
from gpu_admission.errors import UnreadableBody


@pytest.mark.parametrize(
    "value", [None, 0, -1, -(10**30), 0.0, -0.5, -1e300, float("nan"), float("-inf"), "0", "-7", "nan"]
)
def test_nothing_zero_and_negative_are_not_said(value: Any) -> None:
    assert whole(value, "n") == 0
    assert positive({"n": value}, "n", 16) == 16
    assert fraction({"n": value}, "n", 2.5) == 2.5


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (5, 5),
        (1.5, 2),
        (0.001, 1),
        ("100", 100),
        (" 7 ", 7),
        ("1_000", 1000),
        ("1e3", 1000),
        ("2.5", 3),
        (1e15, 10**15),
    ],
)
def test_digits_and_fractions_are_numbers(value: Any, number: int) -> None:
    assert whole(value, "n") == number
    assert positive({"n": value}, "n", 16) == number


@pytest.mark.parametrize(
    "value", [2**63, 10**18, 10**400, 1e18, 1e308, float("inf"), "inf", "9" * 40, "1e999"]
)
def test_a_huge_number_is_the_ceiling(value: Any) -> None:
    assert whole(value, "n") == CEILING
    assert fraction({"n": value}, "n", 1.0) == float(CEILING)


@pytest.mark.parametrize("value", [True, False, [], [5], {}, {"a": 1}, "", "many", "0x10", "5" * 401, b"5"])
def test_what_is_no_number_is_refused_by_name(value: Any) -> None:
    with pytest.raises(UnreadableBody, match="max_tokens must be a number"):
        whole(value, "max_tokens")
    with pytest.raises(UnreadableBody, match="max_tokens must be a number"):
        fraction({"max_tokens": value}, "max_tokens", 1.0)


def test_a_missing_number_is_the_default() -> None:
    assert positive({}, "n", 3) == 3
    assert fraction({}, "n", 1.25) == 1.25


def test_fractions_are_kept_where_they_count() -> None:
    assert fraction({"scale": 1.5}, "scale", 2.0) == 1.5
    assert fraction({"scale": "1.5"}, "scale", 2.0) == 1.5


def test_products_stop_at_the_ceiling() -> None:
    assert capped(CEILING * CEILING) == CEILING
    assert capped(7) == 7


@pytest.mark.parametrize(
    ("value", "error"),
    [("5", TypeError), (True, TypeError), (1.0, TypeError), (0, ValueError), (2**60, ValueError)],
)
def test_a_wrong_option_is_refused_by_name(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="context"):
        positive_option(value, "context")
