"""``Table``: the next measured point, and what is beyond it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_admission.estimators import Table
from gpu_admission.sizes import MAX_BYTES
from gpu_admission.types import Workload
from tests.estimators.published import table

SEED = [({"prompt_tokens": n, "sequences": b}, f"{size}GB") for n, b, size in table("seed-qwen2-1.5b")]


def at(table: Table, prompt: int, rows: int = 1) -> int:
    return table.estimate(Workload(prompt_tokens=prompt, sequences=rows)).bytes


def test_the_seed_table_is_never_below_one_of_its_cells() -> None:
    measured = Table(SEED)
    for n, b, size in table("seed-qwen2-1.5b"):
        assert at(measured, n, b) == round(size * 10**9)


@given(prompt=st.integers(0, 1024), rows=st.integers(1, 4))
def test_between_points_the_upper_one_counts(prompt: int, rows: int) -> None:
    above = [round(size * 10**9) for n, b, size in table("seed-qwen2-1.5b") if n >= prompt and b >= rows]
    assert at(Table(SEED), prompt, rows) == min(above)


def test_beyond_the_grid_nothing_fits_unless_it_may_scale() -> None:
    refusing = Table(SEED).estimate(Workload(prompt_tokens=2048, sequences=8))
    assert refusing.bytes == MAX_BYTES
    assert "prompt_tokens 2048 > 1024, sequences 8 > 4" in refusing.notes[0]
    assert at(Table(SEED, beyond="scale"), 2048, 8) == 4 * 10_500_000_000
    assert at(Table(SEED, beyond="scale"), 2048, 1) == 2 * 6_000_000_000


def test_a_corner_that_nobody_could_measure_is_refused() -> None:
    corner = [row for row in SEED if row[0] != {"prompt_tokens": 1024, "sequences": 4}]
    for measured in (Table(corner), Table(corner, beyond="scale")):
        assert at(measured, 1024, 4) == at(measured, 600, 3) == MAX_BYTES
        assert at(measured, 512, 4) == 8_200_000_000
    assert "nothing this large" in Table(corner).estimate(Workload(prompt_tokens=600, sequences=3)).notes[0]


def test_a_hole_in_the_grid_is_charged_as_the_next_point_above() -> None:
    holed = [row for row in SEED if row[0] != {"prompt_tokens": 512, "sequences": 2}]
    assert at(Table(holed), 512, 2) == 7_800_000_000


def test_a_point_that_measured_less_than_a_smaller_one_is_raised_to_it() -> None:
    measured = Table([({"prompt_tokens": 1}, 50), ({"prompt_tokens": 2}, 40), ({"prompt_tokens": 3}, 60)])
    assert [at(measured, n) for n in (1, 2, 3)] == [50, 50, 60]


def test_of_two_measurements_of_a_point_the_larger_counts() -> None:
    assert at(Table([({"prompt_tokens": 1}, 50), ({"prompt_tokens": 1}, 40)]), 1) == 50


def test_a_point_that_took_nothing_is_still_a_byte() -> None:
    assert at(Table([({"prompt_tokens": 1}, 0)]), 1) == 1


def test_axes_may_be_products_and_named_features() -> None:
    measured = Table(
        [
            ({"width*height": 2**18, "features.frames": 1}, 100),
            ({"width*height": 2**20, "features.frames": 1}, 300),
        ]
    )
    workload = Workload(width=512, height=513, features={"frames": 1})
    assert measured.estimate(workload).bytes == 300


def test_an_axis_of_zeros_cannot_be_scaled() -> None:
    assert at(Table([({"prompt_tokens": 0}, 100)], beyond="scale"), 1) == MAX_BYTES


def test_values_that_were_assumed_are_in_the_notes() -> None:
    estimate = Table(SEED).estimate(Workload(prompt_tokens=1, defaulted=("max_tokens",)))
    assert any("max_tokens" in note for note in estimate.notes)


@pytest.mark.parametrize(
    ("rows", "options", "complaint"),
    [
        ([], {}, "at least one"),
        ([({}, 1)], {}, "at least one"),
        ([({"prompt_tokens": 1}, 1), ({"sequences": 1}, 1)], {}, "sequences"),
        ([({"prompt_tokens": 1}, "much")], {}, "size"),
        ([({"prompt_tokens": "1"}, 1)], {}, "prompt_tokens"),
        ([({"prompt_tokens": float("nan")}, 1)], {}, "prompt_tokens"),
        (SEED, {"beyond": "guess"}, "beyond"),
    ],
)
def test_what_makes_no_sense_is_named(rows: list[Any], options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Table(rows, **options)


def test_every_sequence_takes_a_point_anew_unless_a_feature_names_them() -> None:
    alone = Table([({"prompt_tokens": 8}, 100), ({"prompt_tokens": 64}, 300)], beyond="scale")
    assert at(alone, 8, 128) == 12_800
    assert at(alone, 128, 2) == 1200
    assert at(Table([({"prompt_tokens": 8, "sequences": 4}, 100)]), 8, 4) == 100
    whole = Table([({"tensor_bytes": 8}, 100)])
    assert whole.estimate(Workload(tensor_bytes=4, sequences=9)).bytes == 100


def test_a_row_far_above_a_larger_one_is_named_and_with_strict_refused() -> None:
    rows = [({"prompt_tokens": n}, 100 * n) for n in (1, 2, 4, 8, 16)]
    assert Table(rows, strict=True).notes == ()
    rows[1] = ({"prompt_tokens": 2}, 900)
    measured = Table(rows)
    assert "the row {'prompt_tokens': 2} took" in measured.notes[0]
    assert measured.estimate(Workload(prompt_tokens=1)).notes == measured.notes
    with pytest.raises(ValueError, match="measure it again"):
        Table(rows, strict=True)


@pytest.mark.parametrize("rows", [[("prompt_tokens", 5)], [5], {"a": 1}, None, [({"prompt_tokens": 1},)]])
def test_rows_of_a_wrong_shape_are_a_sentence(rows: Any) -> None:
    with pytest.raises(ValueError, match="Table"):
        Table(rows)


def test_an_unknown_feature_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'promt_tokens' is not a feature: known are"):
        Table([({"promt_tokens": 1}, 5)])
