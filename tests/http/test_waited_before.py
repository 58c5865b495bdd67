"""Time spent before the queue counts: refusals name the setting as it was written, and the whole wait."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio
import trio.testing
from fastapi import Depends, FastAPI
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.routing import Route, WebSocketRoute

from gpu_admission import Admission, Estimate, GPUAdmission, Lane, RequestInfo
from gpu_admission.bodies import large
from gpu_admission.budget.ticket import Ticket
from gpu_admission.estimators.measured import Measured
from gpu_admission.observe import Logs, Metrics
from gpu_admission.runtime import clock
from gpu_admission.types import ASGIApp, Event
from tests.cases.harness import Call

pytestmark = pytest.mark.anyio
SLOW = 20.0
"""Seconds that each estimate takes."""


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}


@pytest.fixture
def one_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger reads the jumping clock too."""
    monkeypatch.setattr(clock, "monotonic", trio.current_time)


async def slow(info: RequestInfo) -> int:
    await anyio.sleep(SLOW)
    return 60


def admission(seen: list[Event] | None = None, **options: Any) -> Admission:
    defaults: dict[str, Any] = {"capacity": 100, "estimator": slow}
    if seen is not None:
        defaults["observers"] = [seen.append]
    return Admission(**{**defaults, **options})


async def nothing(*args: Any) -> None:
    raise AssertionError("the app was called")


def middleware(room: Admission) -> ASGIApp:
    return GPUAdmission(nothing, admission=room)


def starlette(room: Admission) -> ASGIApp:
    return Starlette(routes=[Route("/work", room.admit(estimator=slow)(_endpoint), methods=["POST"])])


async def _endpoint(request: Any) -> Any:
    raise AssertionError("the app was called")


def decorated(room: Admission) -> ASGIApp:
    app = FastAPI()

    @app.post("/work")
    @room.admit(estimator=slow)
    async def work() -> None:
        raise AssertionError("the app was called")

    return app


def plain_def(room: Admission) -> ASGIApp:
    app = FastAPI()

    @app.post("/work")
    @room.admit(estimator=slow)
    def work() -> None:
        raise AssertionError("the app was called")

    return app


def dependency(room: Admission) -> ASGIApp:
    app = FastAPI()

    @app.post("/work", dependencies=[Depends(room.dependency(slow))])
    async def work() -> None:
        raise AssertionError("the app was called")

    return app


DOORS = [middleware, starlette, decorated, plain_def, dependency]


@pytest.mark.usefixtures("one_clock")
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("headers", "reason", "longest", "said"),
    [
        ([], "queue_timeout", 30, "timeout=30 s, 20.0 s of which"),
        ([(b"x-request-deadline", b"25")], "deadline", 25, "own deadline of 25 s, 20.0 s of which"),
    ],
)
async def test_what_an_estimate_took_is_part_of_the_wait_at_every_door(
    door: Callable[[Admission], ASGIApp],
    headers: list[tuple[bytes, bytes]],
    reason: str,
    longest: float,
    said: str,
) -> None:
    seen: list[Event] = []
    room = admission(seen)
    held = await room.entrance.acquire(Estimate(100))
    call = Call(door(room), b"{}", headers=headers)
    await call.run()
    assert trio.current_time() == pytest.approx(longest)
    problem = call.problem()
    assert problem["reason"] == reason
    assert said in problem["detail"]
    (refused,) = [event for event in seen if event.kind == "refused"]
    assert refused.waited == pytest.approx(longest)
    held.release()


@pytest.mark.usefixtures("one_clock")
async def test_what_an_estimate_took_is_part_of_the_wait_of_a_websocket() -> None:
    seen: list[Event] = []
    room = admission(seen, websockets=["/work"])
    held = await room.entrance.acquire(Estimate(100))
    app = GPUAdmission(Starlette(routes=[WebSocketRoute("/work", nothing)]), admission=room)
    extensions: dict[str, Any] = {"websocket.http.response": {}}
    call = Call(app, messages=[{"type": "websocket.connect"}], type="websocket", extensions=extensions)
    await call.run()
    assert trio.current_time() == pytest.approx(30)
    body = next(each["body"] for each in call.sent if each["type"] == "websocket.http.response.body")
    assert b"timeout=30 s, 20.0 s of which" in body
    assert [event.waited for event in seen if event.kind == "refused"] == [pytest.approx(30)]
    held.release()


@pytest.mark.usefixtures("one_clock")
async def test_a_lease_without_an_estimate_to_wait_for_names_its_own_timeout() -> None:
    seen: list[Event] = []
    room = admission(seen)
    held = await room.entrance.acquire(Estimate(100))
    with pytest.raises(Exception, match=r"60 B were not free within timeout=7 s$"):
        async with room.lease(60, timeout=7):
            pass
    assert trio.current_time() == pytest.approx(7)
    assert seen[-1].waited == pytest.approx(7)
    held.release()


@pytest.mark.usefixtures("one_clock")
async def test_what_starts_after_a_slow_estimate_has_waited_for_it(caplog: pytest.LogCaptureFixture) -> None:
    registry = CollectorRegistry()
    observers = [Metrics(registry=registry), Logs()]
    room = admission(observers=observers, server_timing=True)
    held = await room.entrance.acquire(Estimate(50))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    call = Call(GPUAdmission(app, admission=room), b"{}")
    with caplog.at_level(logging.DEBUG):
        async with anyio.create_task_group() as group:
            group.start_soon(call.run)
            await anyio.sleep(25)
            held.release()
    assert call.headers["server-timing"] == "gpu_queue;dur=25000.0"
    waited = registry.get_sample_value(
        "gpu_admission_queue_wait_seconds_sum", {"budget": "default", "lane": "default"}
    )
    assert waited == pytest.approx(25)
    assert "began after 25.000 s" in caplog.text


@pytest.mark.usefixtures("one_clock")
async def test_a_refusal_in_the_log_says_how_long_was_waited(caplog: pytest.LogCaptureFixture) -> None:
    room = admission(observers=[Logs()])
    held = await room.entrance.acquire(Estimate(100))
    with caplog.at_level(logging.INFO):
        await Call(middleware(room), b"{}").run()
    assert "refused 60 B after 30.000 s: queue_timeout (429)" in caplog.text
    held.release()


@pytest.mark.usefixtures("one_clock")
async def test_an_early_refusal_counts_what_was_waited_before_the_queue() -> None:
    """Two at a time for ten seconds each: after its estimate four are left, so 10 to 20 s more."""
    room = admission(refuse_early=True)

    async def work() -> None:
        lease = await room.entrance.acquire(Estimate(50), timeout=1000)
        await anyio.sleep(10)
        lease.release()

    async with anyio.create_task_group() as group:
        for _ in range(8):
            group.start_soon(work)
        await anyio.sleep(1)
        call = Call(middleware(room), b"{}")
        await call.run()
        assert trio.current_time() == pytest.approx(21)
    problem = call.problem()
    assert problem["reason"] == "queue_timeout"
    assert "after 20.0 s before it could queue, exceeds timeout=30 s (refuse_early=True)" in problem["detail"]


@pytest.mark.usefixtures("one_clock")
async def test_an_estimate_that_takes_longer_than_a_request_may_wait_leaves_no_time_in_the_queue() -> None:
    async def never(info: RequestInfo) -> int:
        await anyio.sleep_forever()
        raise AssertionError

    room = admission(estimator=never, fallback=60)
    held = await room.entrance.acquire(Estimate(100))
    call = Call(middleware(room), b"{}")
    await call.run()
    assert trio.current_time() == pytest.approx(30)
    assert "60 B were not free within timeout=30 s, 30.0 s of which went by" in call.problem()["detail"]
    held.release()


@pytest.mark.usefixtures("one_clock")
async def test_who_waits_to_be_measured_is_refused_by_the_setting_as_it_was_written() -> None:
    """``estimator="auto"``: another runs alone and is measured for longer than this one may wait."""
    room = admission(estimator=Measured())

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await anyio.sleep(1000)

    behind = GPUAdmission(app, admission=room)
    async with anyio.create_task_group() as group:
        group.start_soon(Call(behind, b"{}").run)
        await anyio.sleep(1)
        call = Call(behind, b"{}")
        await call.run()
        group.cancel_scope.cancel()
    assert trio.current_time() == pytest.approx(31)
    assert "100 B were not free within timeout=30 s, " in call.problem()["detail"]


@pytest.mark.usefixtures("one_clock")
async def test_the_lane_that_a_request_is_in_says_how_long_it_waits_in_all() -> None:
    lanes = [Lane("quick", timeout=22), Lane("slow", timeout=100)]
    room = admission(lanes=lanes, lane=lambda info: info.json["lane"])
    held = await room.entrance.acquire(Estimate(100))
    for lane, longest in (("quick", 22), ("slow", 100)):
        begun, call = trio.current_time(), Call(middleware(room), b'{"lane": "%s"}' % lane.encode())
        await call.run()
        assert trio.current_time() - begun == pytest.approx(longest)
        assert f"lane '{lane}': timeout={longest} s, 20.0 s of which" in call.problem()["detail"]
    held.release()


@pytest.mark.usefixtures("one_clock")
@pytest.mark.parametrize(
    ("options", "longest", "said"),
    [
        ({}, 30, "timeout=30 s"),
        ({"timeout": 5}, 5, "timeout=5 s"),
        ({"lanes": [Lane("quick", timeout=4)]}, 4, "lane 'quick': timeout=4 s"),
        (
            {"lanes": [Lane("quick", timeout=4), Lane("slow", timeout=90)], "lane": lambda info: "quick"},
            90,
            "lane 'slow': timeout=90 s",
        ),
    ],
)
async def test_a_body_that_can_not_be_read_in_time_is_refused_by_name_and_by_the_most_patient_lane(
    options: dict[str, Any], longest: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which lane it is in is known only once it is read."""
    monkeypatch.setattr(large, "AT_ONCE", 0)
    seen: list[Event] = []
    room = admission(seen, estimator=len_of_body, **options)
    call = Call(middleware(room), b"x" * (large.LARGE_BYTES + 1))
    await call.run()
    assert trio.current_time() == pytest.approx(longest)
    problem = call.problem()
    assert problem["detail"].startswith(f"its body was not read within {said}: too many large ones")
    assert [event.waited for event in seen] == [pytest.approx(longest)]


def len_of_body(info: RequestInfo) -> int:
    return len(info.body)


@pytest.mark.usefixtures("one_clock")
async def test_an_admission_that_is_drained_during_an_estimate_says_how_long_was_waited() -> None:
    seen: list[Event] = []
    room = admission(seen)
    call = Call(middleware(room), b"{}")
    async with anyio.create_task_group() as group:
        group.start_soon(call.run)
        await anyio.sleep(8)
        room.drain()
    assert call.problem()["reason"] == "draining"
    assert [event.waited for event in seen if event.kind == "refused"] == [pytest.approx(8)]


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_what_an_estimate_took_is_part_of_the_wait_for_a_shared_budget(tmp_path: Path) -> None:
    async def short(info: RequestInfo) -> int:
        await anyio.sleep(0.2)
        return 60

    seen: list[Event] = []
    room = admission(seen, estimator=short, timeout=2.0, shared=str(tmp_path / "budget"))
    held = await room.entrance.acquire(Estimate(100))
    call = Call(middleware(room), b"{}")
    await call.run()
    said = re.search(r"60 B were not free within timeout=2 s, (.+) s of which", call.problem()["detail"])
    assert said is not None
    assert 0.2 <= float(said[1]) < 2
    (refused,) = [event for event in seen if event.kind == "refused"]
    assert refused.waited >= 2
    held.release()
    await room.aclose()


def test_a_ticket_that_is_asked_for_anew_keeps_what_its_request_had_waited() -> None:
    ticket = Ticket(1, waited_before=3.0)
    ticket.renew(2, 0, None)
    assert ticket.waited_before == 3.0
