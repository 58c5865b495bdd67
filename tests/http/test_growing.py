"""Large bytes are made of small pieces without gaps in the heap, and leave nothing open."""

from __future__ import annotations

import os
import random

import pytest

from gpu_admission.http import growing
from gpu_admission.http.growing import IN_HEAP, Growing, spare


@pytest.mark.parametrize("has_files", [True, False])
@pytest.mark.parametrize("size", [0, 5, IN_HEAP, IN_HEAP + 1, 3 * IN_HEAP])
def test_it_is_what_was_written(size: int, has_files: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_files:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    whole = random.Random(size).randbytes(size)
    with Growing() as grown:
        for at in range(0, size, 70_000):
            grown.write(whole[at : at + 70_000])
        assert grown.size == size
        assert grown.whole() == whole


def test_where_no_file_can_be_opened_the_heap_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(name: str) -> int:
        raise OSError(24, "too many open files")

    monkeypatch.setattr(os, "memfd_create", full, raising=False)
    with Growing() as grown:
        grown.write(b"a" * (2 * IN_HEAP))
        grown.write(b"b")
        assert grown.whole() == b"a" * (2 * IN_HEAP) + b"b"


def test_nothing_stays_open_where_a_piece_is_not_written_to_its_end() -> None:
    grown = Growing()
    grown.write(b"a" * (2 * IN_HEAP))
    with pytest.raises(ZeroDivisionError), grown:
        raise ZeroDivisionError
    with pytest.raises(ValueError, match="closed"):
        grown.write(b"b")


def test_what_is_made_outside_of_the_heap_is_there_twice_while_it_is_made() -> None:
    assert spare(IN_HEAP) == IN_HEAP // 8
    assert spare(IN_HEAP + 1) == IN_HEAP + 1
    assert growing._MAPPED > 32 * 2**20, "the most that the C library's own threshold may grow to"
