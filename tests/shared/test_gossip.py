"""What processes of one budget tell each other beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpu_admission import Admission
from gpu_admission.estimators import Learned, Linear
from gpu_admission.estimators.taken import Followed
from gpu_admission.shared.gossip import Gossip, Record
from gpu_admission.shared.operations import MOST_TOLD
from gpu_admission.types import Usage, Workload
from tests.shared.hub import Process, World
from tests.waiting import until_async

pytestmark = pytest.mark.anyio


def nothing() -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (), ()


def speaking(world: World, count: int = 2) -> list[tuple[Process, Gossip, list[Record]]]:
    """So many processes more, what they say, and what each has heard."""
    made = []
    for n in range(count):
        heard: list[Record] = []
        gossip = Gossip(nothing, heard.append)
        made.append((Process(world.hub, world.clock, f"g{n}", use=gossip), gossip, heard))
    return made


def test_what_one_says_all_others_hear_once() -> None:
    world = World(1)
    (first, says, own), (second, _, heard), (third, _, too) = speaking(world, 3)
    says.say(("estimator", "oom"))
    for _ in range(2):
        for process in (first, second, third):
            process.shared.pulse()
    assert own == []
    assert heard == too == [("estimator", "oom")]


def test_while_there_is_nothing_to_say_nothing_is_written() -> None:
    world = World(1)
    (first, _, _), *_ = speaking(world)
    first.shared.pulse()
    before = len(world.hub.entries)
    for _ in range(5):
        first.shared.pulse()
    assert len(world.hub.entries) == before


def test_of_very_many_records_the_newest_are_told() -> None:
    world = World(1)
    (first, says, _), (second, _, heard) = speaking(world)
    for n in range(1000):
        says.say(("estimator", n))
    first.shared.pulse()
    second.shared.pulse()
    assert [record[1] for record in heard] == list(range(936, 1000))


def test_what_is_too_long_is_not_told() -> None:
    gossip = Gossip(nothing)
    gossip.say(("x" * (MOST_TOLD + 1),))
    assert gossip.beat().told == b""
    assert gossip.beat().told == b""


@pytest.mark.parametrize(
    "told", [b"", b"\xff", b"x" * 100, msgspec.msgpack.encode([b"a", [5]]), b"\x91" * 5000]
)
def test_whatever_comes_nothing_is_raised(told: bytes) -> None:
    heard: list[Record] = []
    Gossip(nothing, heard.append).take_in(told)
    assert heard == []


ROUTE = "/v1/chat/completions m"
ASKED = Workload(prompt_tokens=1, new_tokens=4096)


def learning(place: str) -> tuple[Admission, Learned]:
    estimator = Learned(Linear({"new_tokens": 1}), usage=True)
    return Admission(capacity=10_000, estimator={"/v1/**": estimator}, shared=place), estimator


def charge(estimator: Learned) -> int:
    return estimator.estimate(ASKED, route=ROUTE).bytes


def use(estimator: Learned, request: Followed) -> None:
    estimator.ended(request, "ok", peak=None, usage=Usage(1, 200), pieces=1)


async def test_admissions_that_share_a_budget_learn_together(tmp_path: Path) -> None:
    (first, here), (second, there) = (learning(str(tmp_path / "gpu0")) for _ in range(2))
    for each in (first, second):
        await each.startup.begin()
    request = Followed(ROUTE, here.estimate(ASKED, route=ROUTE), ASKED)

    def is_known() -> bool:
        use(here, request)
        return charge(there) < 500

    await until_async(is_known)
    here.ended(request, "oom", peak=None, usage=None, pieces=None)
    await until_async(lambda: charge(there) == 4096)
    for each in (first, second):
        await each.aclose()


async def test_what_an_estimator_that_is_not_named_here_has_learned_is_passed_over(tmp_path: Path) -> None:
    admission, estimator = learning(str(tmp_path / "gpu0"))
    records: list[Any] = [("other", "oom"), (), (None,), ([], 1)]
    before = estimator.to_dict()
    for record in records:
        admission._learning._hear(record)
    assert estimator.to_dict() == before


def test_what_a_process_uses_can_be_asked_for_through_it() -> None:
    assert Gossip(lambda: ((5,), (3,)))() == ((5,), (3,))
