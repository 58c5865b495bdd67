"""Which sizes are small enough to pass a head that waits."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_admission.budget.recentsizes import SmallSizes, smallest


def test_up_to_a_part_of_the_head_is_small() -> None:
    assert SmallSizes().beside(100) == 25
    assert SmallSizes(part=0.5).beside(7) == 3
    assert SmallSizes(part=0.0).beside(100) == 0


def test_the_smallest_that_ask_a_share_of_all_bytes_are_small_beside_any_head() -> None:
    sizes = SmallSizes()
    for size in (5, 5, 100, 1, 2):
        sizes.note(size)
    sizes.look()
    assert sizes.beside(4) == 5
    assert sizes.common == 5
    assert sizes.asked == (5, 5, 100, 1, 2)
    assert sizes.median == 5


def looked(sizes: SmallSizes) -> set[int]:
    """What is small after each of many gaps."""
    seen = set()
    for _ in range(40):
        sizes.look()
        seen.add(sizes.beside(100))
    return seen


def test_asking_what_is_small_changes_nothing() -> None:
    sizes = SmallSizes()
    sizes.note(1)
    assert {sizes.beside(100) for _ in range(40)} == {25}
    assert sizes.common == 0


def test_it_looks_again_after_some_questions_and_remembers_the_latest_sizes_only() -> None:
    sizes = SmallSizes(part=0.0)
    for _ in range(200):
        sizes.note(1)
    sizes.look()
    assert sizes.beside(100) == 0
    for _ in range(20):
        sizes.note(1000)
    assert looked(sizes) == {0, 1}
    for _ in range(127):
        sizes.note(1000)
    assert len(sizes.asked) == 127
    assert looked(sizes) == {0, 1}


def test_while_nothing_was_asked_nothing_is_common() -> None:
    assert smallest([], 0.5) == 0
    assert SmallSizes().median == 0


def test_where_one_size_is_all_there_is_it_is_small_only_as_a_whole() -> None:
    assert smallest([7, 7, 7], 0.99) == 0
    assert smallest([7, 7, 7], 1.0) == 7


@settings(deadline=None, database=None, derandomize=True)
@given(st.lists(st.integers(1, 50), max_size=60), st.sampled_from([0.0, 1 / 6, 0.5, 0.9]))
def test_all_up_to_the_common_size_ask_no_more_than_the_share(asked: list[int], share: float) -> None:
    common = smallest(asked, share)
    most = sum(asked) * share
    assert sum(size for size in asked if size <= common) <= most
    larger = [size for size in asked if size > common]
    if larger:
        assert sum(size for size in asked if size <= min(larger)) > most
