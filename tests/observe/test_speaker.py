"""Workers that share a budget and a folder of metrics: its totals are told once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from gpu_admission import Admission
from gpu_admission.observe import metrics_app
from gpu_admission.observe.board import Board
from gpu_admission.observe.speaker import running_here, speaks_for, without_totals
from gpu_admission.types import Estimate, MemberSnapshot, Snapshot
from tests.waiting import until

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


WORKER = """
import asyncio, sys
from gpu_admission import Admission
from gpu_admission.observe import Metrics

async def ask(admission, size):
    async with admission.lease(size, own=True, timeout=60):
        raise AssertionError

async def main():
    admission = Admission(capacity=100, estimator=1, shared=sys.argv[1], observers=[Metrics()])
    await admission.begin()
    held, *more = map(int, sys.argv[2:])
    async with admission.lease(held):
        print("holds", flush=True)
        waits = [asyncio.create_task(ask(admission, size)) for size in more]
        await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.fixture
def workers(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[subprocess.Popen[str]]]:
    """Two real ones of one budget: the first holds 30, the second 40, and a request of 90 waits there."""
    place = tmp_path_factory.mktemp("shared") / "gpu0"
    workers: list[subprocess.Popen[str]] = []
    for sizes in (["30"], ["40", "90"]):
        command = [sys.executable, "-c", WORKER, str(place), *sizes]
        worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        workers.append(worker)
        assert worker.stdout is not None
        assert worker.stdout.readline() == "holds\n"
    yield workers
    for worker in workers:
        worker.kill()
        worker.communicate()


def scraped() -> dict[str, float]:
    """What a scrape says, summed over all labels."""
    app = Starlette(routes=[Mount("/", metrics_app(registry=CollectorRegistry()))])
    samples: dict[str, float] = {}
    for family in text_string_to_metric_families(TestClient(app).get("/").text):
        for sample in family.samples:
            name = sample.name.removeprefix("gpu_admission_")
            samples[name] = samples.get(name, 0.0) + sample.value
    return samples


def totals(capacity: int, in_use: int, running: int, waiting: int) -> dict[str, float]:
    return {
        "capacity_bytes": capacity,
        "ceiling_bytes": capacity,
        "in_use_bytes": in_use,
        "lane_in_use_bytes": in_use,
        "running_requests": running,
        "waiting_requests": waiting,
        "waiting_bytes": waiting * 90,
    }


def test_a_scrape_of_several_workers_tells_their_one_budget_once(
    workers: list[subprocess.Popen[str]],
) -> None:
    def tells(expected: dict[str, float]) -> bool:
        said = scraped()
        return {name: said.get(name) for name in expected} == expected

    until(lambda: tells(totals(100, in_use=70, running=2, waiting=1)))
    workers[0].kill()  # which told them
    workers[0].wait()
    until(lambda: tells(totals(100, in_use=40, running=1, waiting=1)))
