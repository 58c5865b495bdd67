"""One admission and several event loops: BL-54."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import pytest
import trio
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from gpu_admission import Admission, GPUAdmission, QueueTimeout
from tests.cases.harness import Call, cost, settle, working

MODULE_LEVEL = Admission(capacity=100, estimator=60)


@MODULE_LEVEL.admit
async def decorated(request: Request) -> PlainTextResponse:
    return PlainTextResponse(str(MODULE_LEVEL.snapshot().in_use))


async def two_take_turns(admission: Admission) -> None:
    """One holds, one waits for it: what is bound to a loop is used."""
    order: list[str] = []

    async def take(name: str) -> None:
        async with admission.lease(60):
            order.append(name)
            await settle()

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(take, "one")
            group.start_soon(take, "other")
    assert sorted(order) == ["one", "other"]
    assert admission.snapshot().in_use == 0


Run = Callable[[Callable[[Admission], Coroutine[Any, Any, None]], Admission], object]
LOOPS: dict[str, Run] = {
    "asyncio": lambda work, admission: asyncio.run(work(admission)),
    "uvloop": lambda work, admission: uvloop.run(work(admission)),
    "trio": lambda work, admission: trio.run(work, admission),
    "anyio in a thread": lambda work, admission: _in_thread(lambda: anyio.run(work, admission)),
}


def _in_thread(work: Callable[[], object]) -> None:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "it hangs"
    if errors:
        raise errors[0]


@pytest.mark.parametrize("second", LOOPS)
@pytest.mark.parametrize("first", LOOPS)
def test_bl_54_loops_in_sequence_share_one_admission(first: str, second: str) -> None:
    admission = Admission(capacity=100, estimator=1, timeout=5)
    for name in (first, second, first):
        LOOPS[name](two_take_turns, admission)


def test_bl_54_a_module_level_decorator_works_in_each_test_client() -> None:
    app = Starlette(routes=[Route("/", decorated, methods=["POST"])])
    for _ in range(2):
        assert TestClient(app).post("/").text == "60"
    for _ in range(2):
        with TestClient(app) as client:
            assert client.post("/").text == "60"
            assert client.post("/").text == "60"
    with TestClient(app, backend="trio") as client:
        assert client.post("/").text == "60"
    assert MODULE_LEVEL.snapshot().in_use == 0


def test_bl_54_a_loop_that_died_with_work_and_waiters_leaves_nothing_behind() -> None:
    admission = Admission(capacity=100, estimator=1)

    async def die() -> None:
        app = GPUAdmission(working, admission=admission)
        tasks = [asyncio.ensure_future(Call(app).run()) for _ in range(2)]
        holding = asyncio.ensure_future(two_take_turns(admission))
        lease = await admission.lease(100).__aenter__()
        assert lease.bytes == 100
        await settle()
        assert admission.snapshot().waiting > 0
        lease.release()
        del tasks, holding

    asyncio.run(die())
    assert admission.snapshot().in_use == 0
    asyncio.run(two_take_turns(admission))


class Alive:
    """An event loop that runs in a thread of its own, and holds bytes there."""

    def __init__(self, admission: Admission, size: int) -> None:
        self._admission = admission
        self._size = size
        self._holds = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: anyio.run(self._hold))

    async def _hold(self) -> None:
        async with self._admission.lease(self._size):
            self._holds.set()
            await anyio.to_thread.run_sync(self._stop.wait)

    def __enter__(self) -> Alive:
        self._thread.start()
        assert self._holds.wait(10)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join(10)
        assert not self._thread.is_alive()


@pytest.mark.parametrize("size", [30, 100], ids=["when it would fit", "when it would wait"])
@pytest.mark.parametrize("name", LOOPS)
def test_bl_54_a_second_live_loop_is_refused_clearly(name: str, size: int) -> None:
    admission = Admission(capacity=100, estimator=1)
    with (
        Alive(admission, size),
        pytest.raises(RuntimeError, match="another event loop that is still running"),
    ):
        LOOPS[name](_one, admission)
    assert admission.snapshot().in_use == 0
    LOOPS[name](two_take_turns, admission)


async def _one(admission: Admission) -> None:
    async with admission.lease(60):
        raise AssertionError("let in")


def test_bl_54_a_second_live_loop_is_no_refusal_of_the_request_but_an_error() -> None:
    """Nothing is answered with a 429 that no waiting would cure."""
    admission = Admission(capacity=100, estimator=cost)
    call_outcome: list[BaseException | None] = []

    async def call_it() -> None:
        call = Call(GPUAdmission(working, admission=admission), b"x")
        await call.run()
        assert call.sent == []
        call_outcome.append(call.error)

    with Alive(admission, 30):
        asyncio.run(call_it())
    assert [type(error) for error in call_outcome] == [RuntimeError]


def test_bl_54_an_admission_for_each_loop_works_at_the_same_time() -> None:
    with Alive(Admission(capacity=100, estimator=1), 100):
        asyncio.run(two_take_turns(Admission(capacity=100, estimator=1)))


@pytest.mark.parametrize("mode", ["shadow", "off"])
def test_bl_54_what_never_waits_serves_any_loop(mode: Any) -> None:
    admission = Admission(capacity=100, estimator=1, mode=mode)
    with Alive(admission, 100):
        asyncio.run(_two_at_once(admission))
    assert admission.snapshot().in_use == 0


async def _two_at_once(admission: Admission) -> None:
    async with admission.lease(60), admission.lease(60):
        pass


def test_bl_54_an_alternating_loop_does_not_hang() -> None:
    """Loops that run in turns, as test fixtures leave them: what waited in one is refused in the other."""
    admission = Admission(capacity=100, estimator=1, timeout=0.05)
    one, other = asyncio.new_event_loop(), asyncio.new_event_loop()
    try:
        holder = one.run_until_complete(admission.lease(100).__aenter__())
        waiting = one.create_task(admission.lease(100).__aenter__())
        one.run_until_complete(asyncio.sleep(0))
        assert admission.snapshot().waiting == 1
        with pytest.raises(QueueTimeout):
            other.run_until_complete(admission.lease(50, timeout=0).__aenter__())
        holder.release()
        assert other.run_until_complete(admission.lease(100).__aenter__()).bytes == 100
        with pytest.raises(Exception, match="wait"):
            one.run_until_complete(waiting)
    finally:
        one.close()
        other.close()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
def test_bl_54_eager_tasks_work() -> None:
    async def eagerly(admission: Admission) -> None:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined,unused-ignore]
        await two_take_turns(admission)
        calls = [Call(GPUAdmission(working, admission=admission), b"x") for _ in range(3)]
        for call in calls:
            call.finish()
        await asyncio.gather(*(call.run() for call in calls))
        assert [call.status for call in calls] == [200, 200, 200]

    for _ in range(2):
        asyncio.run(eagerly(Admission(capacity=100, estimator=60)))
