"""What one process has learned, told to another."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpu_admission.estimators import Learned, Linear
from gpu_admission.estimators.auto import auto
from gpu_admission.estimators.taken import Followed
from gpu_admission.request import RequestInfo
from gpu_admission.types import Estimate, Usage, Workload
from tests.bench.asgi import CHAT, scope_of

ROUTE = "/v1/chat/completions m"
ASKED = Workload(prompt_tokens=10, new_tokens=4096)


def pair(**options: Any) -> tuple[Learned, Learned]:
    """Two that tell each other everything, as bytes."""
    here, there = (Learned(Linear({"new_tokens": 100}), usage=True, **options) for _ in range(2))
    here.share(lambda record: there.hear(passed(record)))
    there.share(lambda record: here.hear(passed(record)))
    return here, there


def passed(record: tuple[Any, ...]) -> tuple[Any, ...]:
    told: tuple[Any, ...] = msgspec.msgpack.decode(msgspec.msgpack.encode(record), type=tuple[Any, ...])
    return told


def use(learned: Learned, new: int, times: int = 120, outcome: str = "ok") -> None:
    for _ in range(times):
        request = Followed(ROUTE, learned.estimate(ASKED, route=ROUTE), ASKED, 100)
        learned.ended(request, outcome, peak=None, usage=Usage(10, new), pieces=1)


def charge(learned: Learned) -> int:
    return learned.estimate(ASKED, route=ROUTE).bytes


def test_what_answers_used_in_one_process_is_known_in_the_other() -> None:
    here, there = pair()
    use(here, 200)
    assert charge(there) == charge(here) == 200 * 100
    assert "120 observations" in repr(there)


def test_an_out_of_memory_in_one_process_makes_the_other_careful_too() -> None:
    here, there = pair()
    use(here, 200)
    use(there, 200, times=1, outcome="oom")
    assert charge(here) == charge(there) == 4096 * 100


def test_peaks_that_an_app_has_recorded_are_told_too() -> None:
    here, there = pair()
    for _ in range(5):
        here.observe(ROUTE, Estimate(100), 900)
    assert there.estimate(Workload(new_tokens=1), route=ROUTE).bytes == pytest.approx(945, rel=0.01)


def test_what_was_measured_alone_in_one_process_is_known_in_the_other() -> None:
    here, there = auto(), auto()
    here.share(lambda record: there.hear(passed(record)))
    for each in (here, there):
        each.bind(lambda: 10**9)
    info = RequestInfo(scope_of(), CHAT)
    alone = here(info)
    assert isinstance(alone, Estimate)
    here.ended(here.follow(info, alone), "ok", peak=5_000_000, usage=None, pieces=None)
    assert [str(progress) for progress in there.progress()] == ["learning /v1/chat/completions: 1 of 40"]
    there(info)
    beside = there(info)
    assert isinstance(beside, Estimate)
    assert 5_000_000 <= beside.bytes <= 7_500_001


@pytest.mark.parametrize(
    "record",
    [
        (),
        ("what",),
        ("Taken",),
        ("Taken", 5, 5, 5),
        ("Taken", "/a", "much", 5),
        ("Counted", "/a", None, 5),
        ("measured",),
        ("measured", "/a", "ok", [1.0], [1.0], 5, False, False),
        (None, 1),
        ({}, []),
    ],
)
def test_a_record_that_is_none_changes_nothing(record: tuple[Any, ...]) -> None:
    learned = auto()
    before = learned.to_dict()
    learned.hear(record)
    assert learned.to_dict() == before
