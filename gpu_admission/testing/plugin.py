"""A pytest fixture: admissions that are checked when a test is over.

Write ``pytest_plugins = ["gpu_admission.testing.plugin"]`` in your ``conftest.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias, Unpack

import pytest

from gpu_admission import Admission, Snapshot
from gpu_admission.settings import Options

MakeAdmission: TypeAlias = Callable[..., Admission]


@pytest.fixture
def admission() -> Iterator[MakeAdmission]:
    """``admission(capacity="1GiB", estimator=...)`` makes one; at the end, all bytes must be back."""
    made: list[Admission] = []

    def make(**settings: Unpack[Options]) -> Admission:
        made.append(Admission(**settings))
        return made[-1]

    yield make
    for each in made:
        _check_rest(each.snapshot())


def _check_rest(rest: Snapshot) -> None:
    held = {
        "in_use": rest.in_use,
        "running": rest.running,
        "waiting": rest.waiting,
        "buffered_bytes": rest.buffered_bytes,
    }
    left = {name: value for name, value in held.items() if value}
    assert not left, f"the test is over, and not all was given back: {left}"
