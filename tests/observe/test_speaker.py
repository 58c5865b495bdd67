"""Workers that share a budget and a folder of metrics: its totals are told once."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gpu_admission import Admission
from gpu_admission.observe.board import Board
from gpu_admission.observe.speaker import running_here, speaks_for, without_totals
from gpu_admission.types import Estimate, MemberSnapshot, Snapshot

pytestmark = pytest.mark.anyio


def member(pid: int, *, is_self: bool = False, host: str = "here", is_dead: bool = False) -> MemberSnapshot:
    return MemberSnapshot(f"m{pid}", pid, host, 1.0, 0.1, 30, 1, 0, (), is_self, is_dead)


def snapshot(*members: MemberSnapshot) -> Snapshot:
    own = Admission(capacity=100, estimator=1).snapshot()
    return msgspec.structs.replace(own, running=5, members=members)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    return tmp_path


def test_the_longest_living_of_those_that_write_tells_the_totals(folder: Path) -> None:
    (folder / "gauge_livesum_1.db").touch()
    (folder / "gauge_livesum_2.db").touch()
    assert speaks_for(snapshot(member(1, is_self=True), member(2)))
    assert not speaks_for(snapshot(member(1), member(2, is_self=True)))


@pytest.mark.parametrize("first", [member(7), member(1, host="elsewhere"), member(1, is_dead=True)])
def test_a_member_that_writes_nothing_here_tells_nothing(folder: Path, first: MemberSnapshot) -> None:
    (folder / "gauge_livesum_1.db").touch()
    assert speaks_for(snapshot(first, member(2, is_self=True)))


def test_a_worker_tells_its_own_leases_and_one_that_is_scraped_alone_tells_all(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = snapshot(member(1), member(2, is_self=True))
    assert running_here(both) == 1
    assert running_here(snapshot()) == 5
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR")
    assert running_here(both) == 5
    assert speaks_for(both)


async def test_who_does_not_speak_tells_no_bytes_and_opens_no_breaker() -> None:
    admission = Admission(capacity=100, estimator=1)
    lease = await admission.entrance.acquire(Estimate(40))
    told = without_totals(admission.snapshot())
    assert [(d.capacity, d.in_use, d.ceiling) for d in told.devices] == [(0, 0, None)]
    assert [(lane.in_use, lane.waiting) for lane in told.lanes] == [(0, 0)]
    lease.release()


async def test_the_page_of_any_worker_shows_who_holds_what(tmp_path: Path) -> None:
    place = str(tmp_path / "gpu0")
    first = Admission(capacity=100, estimator=1, shared=place)
    second = Admission(capacity=100, estimator=1, shared=place)
    board = Board()
    second.observe(board)
    await second.startup.begin()
    lease = await first.entrance.acquire(Estimate(40))
    state = board.state()
    assert state["shared"] == place
    assert sorted(each["bytes"] for each in state["members"]) == [0, 40]
    assert (state["in_use"], state["other_leases"]) == (40, 40)
    lease.release()
    await first.aclose()
    await second.aclose()
