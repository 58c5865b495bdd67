"""``Linear``: its terms, and fits to measured rows."""

from __future__ import annotations

import inspect
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_admission.estimators import Linear
from gpu_admission.estimators.features import KNOWN, feature, workload_of
from gpu_admission.sizes import MAX_BYTES
from gpu_admission.types import Workload
from gpu_admission.workloads import OpenAI, SGLang
from gpu_admission.workloads.content import MESSAGE_TOKENS, TEMPLATE_TOKENS
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
        ("features.frames", Workload(features={"frames": 16}), 16),
        ("pixels", Workload(width=3, height=4, features={"pixels": 5}), 5),
        ("features.frames", Workload(features={"frames": -16}), 0),
    ],
)
def test_features_are_sizes_of_the_workload_what_follows_from_them_and_named_numbers(
    name: str, workload: Workload, value: float
) -> None:
    assert Linear({name: 1000}, constant=1).estimate(workload).bytes == 1 + 1000 * value


def test_a_feature_that_the_workload_lacks_is_an_error_and_not_zero() -> None:
    with pytest.raises(LookupError, match="frames"):
        Linear({"features.frames": 1}).estimate(Workload())


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e300])
def test_a_feature_that_is_no_size_is_the_most_there_is(value: float) -> None:
    assert Linear({"features.frames": 1.5}).estimate(Workload(features={"frames": value})).bytes == MAX_BYTES


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
        ({"pixels": p, "features.frames": f}, 1000 + 7 * p + 3 * p * f)
        for p in (10, 500, 10**6)
        for f in (1, 2, 16)
    ]
    fit = Linear.fit(rows, ["pixels", "pixels*features.frames"])
    assert (fit.constant, dict(fit.coefficients)) == (1000, {"pixels": 7, "pixels*features.frames": 3})


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


class TestSequences:
    README = Linear({"prompt_tokens": "0.1MiB", "new_tokens": "0.1MiB"}, constant="40MiB")

    def test_every_sequence_costs_the_terms_anew(self) -> None:
        one = self.README.estimate(Workload(prompt_tokens=100, new_tokens=50)).bytes - 40 * 2**20
        many = self.README.estimate(Workload(prompt_tokens=100, new_tokens=50, sequences=128))
        assert many.bytes - 40 * 2**20 == pytest.approx(128 * one, abs=200)
        assert sum(many.parts.values()) == pytest.approx(many.bytes, abs=2)

    def test_terms_that_name_sequences_are_taken_as_they_stand(self) -> None:
        linear = Linear({"prompt_tokens": 5, "prompt_tokens*sequences": 3, "sequences": 7})
        assert linear.estimate(Workload(prompt_tokens=10, sequences=4)).bytes == 50 + 120 + 28
        assert (
            Linear({"new_tokens": 5, "sequences": 0}).estimate(Workload(new_tokens=9, sequences=4)).bytes
            == 45
        )

    @pytest.mark.parametrize("name", ["total_prompt_tokens", "tensor_bytes", "context", "beams"])
    def test_what_is_said_of_all_sequences_is_not_multiplied(self, name: str) -> None:
        for sequences in (1, 64):
            workload = workload_of({name: 10, "sequences": sequences})
            assert Linear({name: 3}).estimate(workload).bytes == 30

    def test_a_fit_counts_the_sequences_of_its_rows(self) -> None:
        rows = [({"prompt_tokens": n, "sequences": s}, 100 + 7 * n * s) for n in (1, 50, 900) for s in (1, 8)]
        fit = Linear.fit(rows, ["prompt_tokens"])
        assert (fit.constant, dict(fit.coefficients)) == (100, {"prompt_tokens": 7})


class TestNames:
    def test_help_says_what_each_feature_is(self) -> None:
        described = re.findall(r"^    ([a-z_]+)  +\S", inspect.getdoc(Linear) or "", re.MULTILINE)
        assert tuple(described) == KNOWN
        for name in described:
            assert feature(name) is not None

    def test_help_says_what_is_charged_for_a_template_and_without_a_limit(self) -> None:
        told = " ".join((Linear.__doc__ or "").split())
        assert f"{MESSAGE_TOKENS} for each message and {TEMPLATE_TOKENS} once" in told
        openai, sglang = (inspect.signature(dialect).parameters for dialect in (OpenAI, SGLang))
        usual, plain = openai["default_new_tokens"].default, openai["completion_new_tokens"].default
        assert f"``default_new_tokens`` ({usual:,}; SGLang: {sglang['default_new_tokens'].default};" in told
        assert f"``completion_new_tokens``, {plain})" in told

    def test_an_unknown_feature_is_refused_with_the_known_ones(self) -> None:
        said = r"'promt_tokens' is not a feature: .*prompt_tokens"
        with pytest.raises(ValueError, match=said):
            Linear({"promt_tokens": 1})
        with pytest.raises(ValueError, match=said):
            Linear.fit([({"prompt_tokens": 1}, 1)], ["promt_tokens"])
        with pytest.raises(ValueError, match=said):
            Linear.fit([({"promt_tokens": 1}, 1)], ["prompt_tokens"])

    def test_a_number_of_ones_own_is_written_with_a_prefix(self) -> None:
        assert Linear({"features.shots": 5}).estimate(Workload(features={"shots": 3})).bytes == 15

    def test_what_a_dialect_here_reads_needs_none(self) -> None:
        assert Linear({"steps": 5}).estimate(Workload(features={"steps": 3})).bytes == 15


@pytest.mark.parametrize(
    "rows",
    [
        [("prompt_tokens", 5)],
        [({"prompt_tokens": 1}, 5, 6)],
        [(1, 2)],
        [5],
        ["ab"],
        {"prompt_tokens": 5},
        "rows",
        7,
        [({"prompt_tokens": "5"}, 5)],
        [({"prompt_tokens": math.nan}, 5)],
        [({"prompt_tokens": -1}, 5)],
        [({"prompt_tokens": 1}, 5.5)],
        [({"prompt_tokens": 1}, None)],
        [({"prompt_tokens": 1}, "much")],
    ],
)
def test_rows_of_a_wrong_shape_are_a_sentence(rows: Any) -> None:
    with pytest.raises(ValueError, match=r"Linear\.fit"):
        Linear.fit(rows, ["prompt_tokens"])
    with pytest.raises(ValueError, match="terms"):
        Linear.fit([({"prompt_tokens": 1}, 5)], "prompt_tokens")


CLEAN = [({"prompt_tokens": n}, 10_000 + 100 * n) for n in (10, 50, 200, 400, 700, 1000)]


class TestTrust:
    def test_nothing_is_charged_less_than_the_smallest_row(self) -> None:
        fit = Linear.fit(
            [({"prompt_tokens": n}, max(500, 100 * n - 400)) for n in (8, 9, 50, 70)], ["prompt_tokens"]
        )
        assert fit.constant < 0
        estimate = fit.estimate(Workload())
        assert estimate.bytes == 500
        assert sum(estimate.parts.values()) == 500

    def test_use_beyond_the_rows_is_said_and_with_strict_refused(self) -> None:
        fit = Linear.fit(CLEAN, ["prompt_tokens"])
        assert fit.estimate(Workload(prompt_tokens=1000)).notes == ()
        beyond = fit.estimate(Workload(prompt_tokens=1001, sequences=2))
        assert beyond.notes == (
            "beyond the rows that were measured: prompt_tokens 1001 > 1000, sequences 2 > 1",
        )
        strict = Linear.fit(CLEAN, ["prompt_tokens"], strict=True)
        assert strict.estimate(Workload(prompt_tokens=1001)).bytes == MAX_BYTES
        assert strict.estimate(Workload(prompt_tokens=1000)).bytes == 110_000

    def test_terms_that_the_rows_hardly_tell_apart_are_said_and_with_strict_refused(self) -> None:
        close = [({"prompt_tokens": n}, 10_000 + 100 * n + n % 3) for n in range(1000, 1010)]
        fit = Linear.fit(close, ["prompt_tokens"])
        assert fit.error is not None
        assert "hardly tell" in fit.error.notes[0]
        assert fit.estimate(Workload(prompt_tokens=1005)).notes == fit.error.notes
        with pytest.raises(ValueError, match="hardly tell"):
            Linear.fit(close, ["prompt_tokens"], strict=True)

    @pytest.mark.parametrize("at", range(len(CLEAN)))
    @pytest.mark.parametrize("factor", [0.3, 3, 40])
    def test_one_wild_row_is_named_wherever_it_stands(self, at: int, factor: float) -> None:
        noisy = [(values, size + (-1) ** i * 50) for i, (values, size) in enumerate(CLEAN)]
        wild = [*noisy[:at], (noisy[at][0], int(noisy[at][1] * factor)), *noisy[at + 1 :]]
        fit = Linear.fit(wild, ["prompt_tokens"])
        assert fit.error is not None
        assert f"the row {CLEAN[at][0]} took" in fit.error.notes[0]
        with pytest.raises(ValueError, match="measure it again"):
            Linear.fit(wild, ["prompt_tokens"], strict=True)

    def test_rows_with_honest_noise_name_none(self) -> None:
        for rows, terms in ((SEED, TERMS), (CLEAN, ["prompt_tokens"])):
            error = Linear.fit(rows, terms).error
            assert error is not None
            assert error.notes == ()

    def test_as_many_rows_as_coefficients_show_nothing(self) -> None:
        fit = Linear.fit(CLEAN[:2], ["prompt_tokens"])
        assert "nothing shows" in fit.estimate(Workload(prompt_tokens=1)).notes[0]

    def test_what_is_known_of_a_fit_is_saved_with_it(self, tmp_path: Path) -> None:
        fit = Linear.fit(CLEAN, ["prompt_tokens"], strict=True)
        fit.save(tmp_path / "costs.json")
        again = Linear.load(tmp_path / "costs.json")
        assert again.error == fit.error
        for tokens in (0, 500, 5000):
            assert again.estimate(Workload(prompt_tokens=tokens)) == fit.estimate(
                Workload(prompt_tokens=tokens)
            )


@pytest.mark.parametrize("terms", [None, "prompt_tokens", ["prompt_tokens"], 7])
def test_terms_that_are_no_dict_are_refused_with_an_example(terms: Any) -> None:
    with pytest.raises(TypeError, match=r"terms of Linear must be a dict .* \{'prompt_tokens': '0.5MiB'\}"):
        Linear(terms)
