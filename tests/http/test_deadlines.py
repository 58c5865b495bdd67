"""Deadlines, on a clock that jumps to the next thing that is due: refused on one's own timer, or early."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
import trio
import trio.testing

from gpu_admission import Admission, Estimate, GPUAdmission, Lane
from gpu_admission.errors import QueueTimeout
from gpu_admission.runtime import clock
from gpu_admission.types import Event, Message, Receive, Scope, Send

pytestmark = pytest.mark.anyio
ON_TIME = pytest.approx(0.0, abs=0.05)


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}


@pytest.fixture(autouse=True)
def one_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger reads the jumping clock too."""
    monkeypatch.setattr(clock, "monotonic", trio.current_time)


def admission(**options: Any) -> Admission:
    return Admission(**{"capacity": 100, "estimator": 50, "timeout": 30.0} | options)


async def work(admission: Admission, size: int, seconds: float) -> None:
    lease = await admission.entrance.acquire(Estimate(size))
    await anyio.sleep(seconds)
    lease.release()


async def refused_after(asking: Callable[[], Awaitable[object]]) -> tuple[float, QueueTimeout]:
    """Seconds until it was refused, and how."""
    began = trio.current_time()
    with pytest.raises(QueueTimeout) as refused:
        await asking()
    return trio.current_time() - began, refused.value


def asking(
    admission: Admission, size: int, deadline: float | None, **more: Any
) -> Callable[[], Awaitable[object]]:
    return lambda: admission.entrance.acquire(Estimate(size), deadline=deadline, **more)


async def test_a_deadline_ends_the_wait_by_itself_while_nothing_else_happens() -> None:
    room = admission()
    async with anyio.create_task_group() as group:
        group.start_soon(work, room, 100, 1000.0)
        await anyio.sleep(1)
        waited, refused = await refused_after(asking(room, 50, 3.0))
        assert waited - 3.0 == ON_TIME
        assert refused.reason == "deadline"
        assert "own deadline of 3 s" in refused.detail
        group.cancel_scope.cancel()


async def test_each_waiter_is_refused_on_its_own_timer() -> None:
    room = admission()
    late: dict[float, float] = {}

    async def wait(deadline: float) -> None:
        waited, _ = await refused_after(asking(room, 50, deadline))
        late[deadline] = waited - deadline

    async with anyio.create_task_group() as group:
        group.start_soon(work, room, 100, 1000.0)
        await anyio.sleep(1)
        async with anyio.create_task_group() as waiters:
            for deadline in (9.0, 0.5, 4.0, 0.0, 20.0):
                waiters.start_soon(wait, deadline)
        assert late == dict.fromkeys((9.0, 0.5, 4.0, 0.0, 20.0), ON_TIME)
        assert room.snapshot().waiting == 0
        group.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("deadline", "longest", "reason"),
    [(None, 30.0, "queue_timeout"), (100.0, 30.0, "queue_timeout"), (29.0, 29.0, "deadline")],
)
async def test_a_deadline_shortens_the_wait_and_never_lengthens_it(
    deadline: float | None, longest: float, reason: str
) -> None:
    room = admission()
    async with anyio.create_task_group() as group:
        group.start_soon(work, room, 100, 1000.0)
        await anyio.sleep(1)
        waited, refused = await refused_after(asking(room, 50, deadline))
        assert waited - longest == ON_TIME
        assert refused.reason == reason
        group.cancel_scope.cancel()


async def test_where_waiting_has_no_end_a_deadline_still_has() -> None:
    room = admission(timeout=math.inf)
    async with anyio.create_task_group() as group:
        group.start_soon(work, room, 100, 1000.0)
        await anyio.sleep(1)
        waited, _ = await refused_after(asking(room, 50, 500.0))
        assert waited - 500.0 == ON_TIME
        group.cancel_scope.cancel()


async def test_the_lanes_own_timeout_holds_where_it_is_shorter() -> None:
    room = admission(lanes=[Lane("quick", timeout=2.0), Lane("slow")])
    async with anyio.create_task_group() as group:
        group.start_soon(work, room, 100, 1000.0)
        await anyio.sleep(1)
        waited, refused = await refused_after(asking(room, 50, 5.0, lane=0))
        assert waited - 2.0 == ON_TIME
        assert "lane 'quick'" in refused.detail
        waited, _ = await refused_after(asking(room, 50, 5.0, lane=1))
        assert waited - 5.0 == ON_TIME
        group.cancel_scope.cancel()


async def test_a_deadline_is_for_the_wait_and_not_for_the_work() -> None:
    room = admission()
    async with anyio.create_task_group() as group:
        group.start_soon(work, room, 100, 5.0)
        await anyio.sleep(1)
        lease = await room.entrance.acquire(Estimate(50), deadline=10.0)
        assert lease.waited == pytest.approx(4.0)
        await anyio.sleep(1000)
        assert not lease.ended
        lease.release()


async def test_when_a_head_gives_up_the_next_one_starts_at_that_moment() -> None:
    room = admission()
    async with anyio.create_task_group() as group:
        group.start_soon(work, room, 60, 1000.0)
        await anyio.sleep(1)
        group.start_soon(refused_after, asking(room, 90, 7.0))
        await anyio.sleep(1)
        lease = await room.entrance.acquire(Estimate(40))
        assert lease.waited == pytest.approx(6.0)
        group.cancel_scope.cancel()


@pytest.mark.parametrize("header", [b"x-request-deadline", b"x-stainless-read-timeout"])
async def test_clients_tell_their_deadline_in_a_header(header: bytes) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await anyio.sleep(1000)

    app_behind = GPUAdmission(app, capacity=100, estimator=60)

    async def nothing_more() -> Message:
        await anyio.sleep_forever()
        raise AssertionError

    async def call(sent: list[Message], *headers: tuple[bytes, bytes]) -> None:
        async def send(message: Message) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/", "headers": list(headers)}
        await app_behind(scope, nothing_more, send)

    async with anyio.create_task_group() as group:
        group.start_soon(call, [])
        await anyio.sleep(1)
        sent: list[Message] = []
        await call(sent, (header, b"2.5"))
        assert trio.current_time() - 3.5 == ON_TIME
        assert sent[0]["status"] == 429
        assert (b"x-gpu-admission-reason", b"deadline") in sent[0]["headers"]
        group.cancel_scope.cancel()


async def test_whoever_would_wait_too_long_is_refused_at_arrival_where_that_is_asked_for() -> None:
    """Two at a time for ten seconds each: ten are still ahead after 21 s, so about a minute."""
    room = admission(refuse_early=True, timeout=1000.0)
    async with anyio.create_task_group() as group:
        for _ in range(16):
            group.start_soon(work, room, 50, 10.0)
        await anyio.sleep(21)
        waited, refused = await refused_after(asking(room, 50, 20.0))
        assert waited == 0.0
        assert refused.reason == "deadline"
        assert "exceeds the request's own deadline of 20 s (refuse_early=True)" in refused.detail
        lease = await room.entrance.acquire(Estimate(50), deadline=120.0)
        assert 40 < lease.waited < 80
        lease.release()


async def test_a_small_request_is_not_refused_for_the_line_that_it_may_pass() -> None:
    room = admission(refuse_early=True, timeout=1000.0)
    async with anyio.create_task_group() as group:
        for _ in range(16):
            group.start_soon(work, room, 50, 10.0)
        await anyio.sleep(21)
        waited, _ = await refused_after(asking(room, 5, 5.0))
        assert waited - 5.0 == ON_TIME
        group.cancel_scope.cancel()


async def test_without_that_setting_it_waits_for_its_deadline() -> None:
    room = admission(timeout=1000.0)
    async with anyio.create_task_group() as group:
        for _ in range(16):
            group.start_soon(work, room, 50, 10.0)
        await anyio.sleep(21)
        waited, _ = await refused_after(asking(room, 50, 20.0))
        assert waited - 20.0 == ON_TIME
        group.cancel_scope.cancel()


async def test_while_nothing_is_known_of_the_wait_nobody_is_refused_early() -> None:
    room = admission(refuse_early=True)
    async with anyio.create_task_group() as group:
        group.start_soon(work, room, 100, 8.0)
        await anyio.sleep(1)
        lease = await room.entrance.acquire(Estimate(50), deadline=10.0)
        assert lease.waited == pytest.approx(7.0)
        lease.release()


async def test_observers_are_told_how_long_a_refused_request_had_waited() -> None:
    events: list[Event] = []
    room = admission(timeout=4.0, observers=[events.append])
    async with anyio.create_task_group() as group:
        group.start_soon(work, room, 100, 1000.0)
        await anyio.sleep(1)
        with pytest.raises(QueueTimeout):
            async with room.lease(50):
                pass
        group.cancel_scope.cancel()
    (refused,) = (event for event in events if event.kind == "refused")
    assert refused.waited == pytest.approx(4.0)
    assert refused.at - refused.waited == pytest.approx(1.0)
