"""The file that ``state`` names, where several keep theirs in it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpu_admission.admission import kept
from gpu_admission.admission.kept import Kept


class Learner:
    """Has learned a number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def to_dict(self) -> Mapping[str, Any]:
        return {"number": self.number}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.number = state["number"]


@pytest.fixture(autouse=True)
def no_others() -> Iterator[None]:
    kept._writers.cache_clear()
    yield
    kept._writers.cache_clear()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "learned.json"


def test_two_that_learn_under_different_names_are_both_kept(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = Kept(path, [("chat", Learner(1))]), Kept(path, [("images", Learner(2))])
    assert not caplog.records
    first.save()
    second.save()
    first.save()
    assert json.loads(path.read_text()) == {"chat": {"number": 1}, "images": {"number": 2}}
    chat, images = Learner(0), Learner(0)
    Kept(path, [("chat", chat), ("images", images)])
    assert (chat.number, images.number) == (1, 2)


def test_two_that_learn_under_one_name_are_warned_of(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "gpu_admission"):
        first = Kept(path, [("auto", Learner(1))])
        assert not caplog.records
        second = Kept(path.parent / "." / path.name, [("auto", Learner(2))])
    assert f"state: {path} is kept by two admissions of this process" in caplog.text
    assert "as 'auto'" in caplog.text
    assert "give each a file of its own" in caplog.text
    assert first is not second


def test_one_that_is_gone_is_no_other(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Kept(path, [("auto", Learner(1))])
    Kept(path, [("auto", Learner(1))])
    assert not caplog.records


def test_a_file_that_was_replaced_by_something_else_is_not_written_over(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mine = Kept(path, [("auto", Learner(1))])
    path.write_text("my notes")
    mine.save()
    assert path.read_text() == "my notes"
    assert "can't be written" in caplog.text
