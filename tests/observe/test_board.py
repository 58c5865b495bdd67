"""What the status page is told: leases, queue, refusals, peaks; and what it is never told."""

from __future__ import annotations

from typing import Any

import anyio
import msgspec
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from gpu_admission import Admission, DeviceReading, Estimate, GPUAdmission, Lane, current_lease
from gpu_admission.observe.board import Board
from gpu_admission.types import DeviceSnapshot
from tests.observe.events import event

pytestmark = pytest.mark.anyio

GIB = 2**30


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("gpu_admission.runtime.clock.monotonic", clock)
    return clock


def boarded(clock: Clock, **settings: Any) -> tuple[Admission, Board]:
    options: dict[str, Any] = {"capacity": "20GiB", "estimator": "1GiB"}
    admission = Admission(**(options | settings))
    board = Board(clock=clock)
    admission.observe(board)
    return admission, board


async def test_open_leases_are_shown_with_their_bytes_lane_and_age(clock: Clock) -> None:
    admission, board = boarded(clock, lanes=[Lane("short"), Lane("long")])
    one = await admission.entrance.acquire(Estimate(5 * GIB), lane=1, route="/generate")
    clock.now += 3
    two = await admission.entrance.acquire(Estimate(2 * GIB))
    two.resize("1GiB")
    shown = board.state()["leases"]
    assert [(row["lane"], row["route"], row["bytes"], row["age"]) for row in shown] == [
        ("long", "/generate", 5 * GIB, 3.0),
        ("short", "unmatched", 1 * GIB, 0.0),
    ]
    one.release()
    two.release()
    assert board.state()["leases"] == []


async def test_leases_from_before_are_a_sum(clock: Clock) -> None:
    admission = Admission(capacity="20GiB", estimator="1GiB")
    early = await admission.entrance.acquire(Estimate(5 * GIB))
    board = Board(clock=clock)
    admission.observe(board)
    early.resize("4GiB")
    state = board.state()
    assert state["leases"] == []
    assert state["other_leases"] == 4 * GIB
    early.release()
    assert board.state()["other_leases"] == 0


async def test_the_queue_is_in_order_with_a_forecast_once_the_drain_is_known(clock: Clock) -> None:
    admission, board = boarded(clock)
    held = [await admission.entrance.acquire(Estimate(5 * GIB)) for _ in range(4)]
    async with anyio.create_task_group() as tasks:
        for size in (20, 15):
            tasks.start_soon(admission.entrance.acquire, Estimate(size * GIB))
            await anyio.wait_all_tasks_blocked()
            clock.now += 1
        assert [row["forecast"] for row in board.state()["queue"]] == [None, None]
        for lease in held[:2]:
            lease.release()
            clock.now += 1
        queue = board.state()["queue"]
        assert [row["bytes"] for row in queue] == [20 * GIB, 15 * GIB]
        assert [row["waited"] for row in queue] == [4.0, 3.0]
        # 5 GiB came back within a second: 20 more than are free take 2 s, 25 more take 5 s at that rate
        assert [row["forecast"] for row in queue] == pytest.approx([4.0, 5.0])
        tasks.cancel_scope.cancel()


async def test_the_last_refusals_come_first_and_only_the_last_twenty(clock: Clock) -> None:
    admission, board = boarded(clock)
    for number in range(25):
        board(event("refused", at=clock.now - 1, reason="queue_full", status=429, bytes=number))
    board(event("shadow", at=clock.now, reason="too_large", bytes=99))
    refusals = board.state()["refusals"]
    assert len(refusals) == 20
    assert refusals[0] | {"ago": 0} == {
        "ago": 0,
        "reason": "too_large",
        "status": 0,
        "shadow": True,
        "lane": "default",
        "route": "/generate",
        "bytes": 99,
    }
    assert [row["bytes"] for row in refusals[1:3]] == [24, 23]
    assert refusals[1]["ago"] == 1.0
    assert admission.snapshot().counts == {}


async def test_estimates_are_held_against_measured_peaks(clock: Clock) -> None:
    _, board = boarded(clock)
    for peak in (50, 100, 200, None, 0):
        board(event("released", peak=peak))
    board(event("released", peak=10, estimate=None))
    estimates = board.state()["estimates"]
    assert [(row["estimate"], row["peak"]) for row in estimates["rows"]] == [
        (100, 200),
        (100, 100),
        (100, 50),
    ]
    assert estimates["median_ratio"] == 1.0


async def test_a_device_shows_who_else_uses_it_where_that_is_known(clock: Clock) -> None:
    admission, board = boarded(clock)
    device = board.state()["devices"][0]
    assert (device["used"], device["foreign"], device["total"]) == (None, None, None)
    reading = DeviceReading(total=24, used=20, ours=15)
    measured = DeviceSnapshot("gpu", 20, 0, 10, "memory", "little is free", reading, 1.5)
    snapshot = msgspec.structs.replace(admission.snapshot(), devices=(measured,))
    admission.snapshot = lambda: snapshot  # type: ignore[method-assign]
    device = board.state()["devices"][0]
    assert (device["used"], device["foreign"], device["total"], device["age"]) == (20, 5, 24, 1.5)
    assert (device["ceiling"], device["closed_by"], device["reason"]) == (10, "memory", "little is free")


def test_nothing_of_a_request_but_its_sizes_is_told() -> None:
    """No path, query, header, body or key gets out, not even of a request that was refused."""

    async def work(request: Request) -> PlainTextResponse:
        assert current_lease() is not None
        return PlainTextResponse(str(board.state()))

    admission = Admission(capacity="20GiB", estimator=lambda info: len(info.body) * GIB)
    board = Board()
    admission.observe(board)
    app = Starlette(routes=[Route("/{rest:path}", work, methods=["POST"])])
    app.add_middleware(GPUAdmission, admission=admission)
    secret = {"authorization": "Bearer s3cr3t", "x-request-id": "s3cr3t", "cookie": "s3cr3t"}
    client = TestClient(app)
    shown = client.post("/s3cr3t?key=s3cr3t", headers=secret, content=b"s3cr3t").text
    client.post("/s3cr3t?key=s3cr3t", headers=secret, content=b"s3cr3t" * 9)
    assert "'bytes': 6442450944" in shown
    assert "s3cr3t" not in shown + str(board.state())
    assert board.state()["refusals"][0]["reason"] == "too_large"
