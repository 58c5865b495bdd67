"""Blocks inside a request: the larger of both is held, never waited for, and held until they end: N-16."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import httpx
import pytest
from fastapi import BackgroundTasks, Depends, FastAPI
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from gpu_admission import Admission, GPUAdmission, QueueFull, Rejected, TooLarge, current_lease
from gpu_admission.admission.shares import Share
from gpu_admission.serving import job
from gpu_admission.types import ASGIApp, Estimate, Receive, Scope, Send
from tests.cases.harness import answer, read_body, scenario, settle, until

pytestmark = pytest.mark.anyio


def budget(**settings: Any) -> Admission:
    return Admission(**{"capacity": 100, "estimator": 10, "timeout": 5, **settings})


async def post(app: Any, path: str = "/") -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        return await client.post(path, content=b"x")


# the larger of both


async def test_a_block_grows_the_lease_and_gives_the_difference_back() -> None:
    admission = budget()
    async with admission.lease(10) as outer:
        async with admission.lease(60) as inner:
            assert inner is outer is current_lease()
            assert (admission.in_use, outer.bytes) == (60, 60)
            async with admission.lease(30):
                assert admission.in_use == 60, "the larger of both"
            async with admission.lease(80):
                assert admission.in_use == 80
            assert admission.in_use == 60
        assert admission.in_use == 10
    assert admission.in_use == 0


async def test_a_block_that_does_not_fit_is_refused_at_once_and_changes_nothing() -> None:
    admission = budget(timeout=1000)
    async with admission.lease(40, own=True):
        other = anyio.Event()

        async def request() -> None:
            async with admission.lease(30, own=True) as lease:
                with anyio.fail_after(20), pytest.raises(Rejected, match="growing never waits") as refused:
                    await admission.lease(61).__aenter__()
                assert (refused.value.reason, refused.value.status) == ("queue_full", 429)
                with pytest.raises(TooLarge):
                    await admission.lease(101).__aenter__()
                assert (lease.bytes, admission.in_use) == (30, 70)
                async with admission.lease(60):
                    assert admission.in_use == 100
            other.set()

        async with anyio.create_task_group() as group:
            group.start_soon(request)
            await other.wait()
    assert admission.in_use == 0
    assert admission.snapshot().counts == {"admitted": 2, "queue_full": 1, "too_large": 1}


async def test_what_a_block_gives_back_wakes_those_who_wait() -> None:
    admission = budget()
    started = anyio.Event()

    async def waiter() -> None:
        async with admission.lease(90, own=True):
            started.set()

    async with anyio.create_task_group() as group, admission.lease(10):
        async with admission.lease(50):
            group.start_soon(waiter)
            await settle()
            assert admission.waiting == 1
        with anyio.fail_after(20):
            await started.wait()


async def test_a_resize_says_what_is_held_from_now_on_in_blocks_too() -> None:
    admission = budget()
    async with admission.lease(10) as lease:
        async with admission.lease(60):
            lease.resize(20)
            assert admission.in_use == 20
            lease.resize(90)
            assert admission.in_use == 90
        assert lease.bytes == 90


@pytest.mark.parametrize("mode", ["shadow", "off"])
async def test_without_deciding_a_block_is_never_refused(mode: str) -> None:
    admission = budget(mode=mode)
    async with admission.lease(10) as lease:
        async with admission.lease(500):
            assert lease.bytes == 500
        assert lease.bytes == 10
    assert admission.in_use == 0


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 100), st.booleans()), max_size=40))
def test_shares_hold_the_larger_and_once_outlived_the_sum(
    steps: list[tuple[int, int, bool]],
) -> None:
    root = Share(10)
    shares = [root]
    for which, size, opens in steps:
        share = shares[which % len(shares)]
        if opens and share.is_open:
            before = root.bytes
            shares.append(share.open(size))
            assert before <= root.bytes <= before + size
        elif share.is_open and share is not root:
            share.close()
    assert root.bytes >= max([10, *(share.size for share in shares if share.is_open)])
    for share in shares:
        share.close() if share.is_open else None
    assert (root.bytes, root.inside) == (0, [])


# doors in doors


def inner_app(admission: Admission, kind: str, seen: list[int]) -> ASGIApp:
    """An app whose route asks for 60 by itself."""

    async def work(*args: Any) -> Response:
        seen.append(admission.in_use)

        async def stream() -> Any:
            seen.append(admission.in_use)
            yield b"ok"

        return StreamingResponse(stream())

    if kind == "starlette":

        @admission.admit(estimator=60)
        async def metered(request: Request) -> Response:
            return await work()

        return Starlette(routes=[Route("/", metered, methods=["POST"])])
    fastapi = FastAPI()
    if kind == "decorator":

        @fastapi.post("/")
        @admission.admit(estimator=60)
        async def decorated() -> Response:
            return await work()

    else:

        @fastapi.post("/", dependencies=[Depends(admission.dependency(60))])
        async def depending() -> Response:
            return await work()

    return fastapi


@pytest.mark.parametrize("kind", ["starlette", "decorator", "dependency"])
async def test_a_route_that_asks_more_than_the_middleware_holds_it_to_its_end(
    kind: str,
) -> None:
    admission = budget()
    seen: list[Any] = []
    app = GPUAdmission(inner_app(admission, kind, seen), admission=admission)
    assert (await post(app)).text == "ok"
    assert seen == [60, 60]
    assert admission.in_use == 0
    async with admission.lease(50):

        async def ask() -> None:
            assert (await post(app)).status_code == 429

        with anyio.fail_after(20):
            await other_task(ask)
    assert admission.in_use == 0
    assert admission.snapshot().counts["queue_full"] == 1


async def other_task(ask: Callable[[], Any]) -> None:
    """``ask`` in a context that holds nothing, as a server's is."""

    async def empty() -> None:
        await ask()

    async with anyio.create_task_group() as group:
        contextvars.Context().run(group.start_soon, empty)


async def test_a_request_inside_a_request_holds_the_larger_of_both() -> None:
    seen: list[int] = []
    admission = budget(estimator={"/outer": 10, "/": 70})

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)
        if scope["path"] == "/outer":
            assert (await post(gate)).status_code == 200
        seen.append(admission.in_use)
        await answer(send)

    gate = GPUAdmission(app, admission=admission)
    assert (await post(gate, "/outer")).status_code == 200
    assert seen == [70, 10]


async def test_what_an_app_inside_raises_comes_out_as_the_same_object() -> None:
    admission, raised = budget(), QueueFull("queue_full", "the app's own")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise raised

    inner = GPUAdmission(app, admission=admission)
    with pytest.raises(QueueFull) as caught:
        await post(GPUAdmission(inner, admission=admission))
    assert caught.value is raised
    assert admission.in_use == 0
    assert admission.snapshot().counts == {"admitted": 1}


# what outlives its request


async def test_n_16_a_task_that_outlives_its_request_keeps_its_bytes_until_it_is_done() -> None:
    done = anyio.Event()
    async with scenario(capacity=4000) as scene:

        async def work() -> None:
            async with scene.admission.lease(2000):
                await done.wait()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            scene.group.start_soon(work)
            await settle()
            await answer(send)

        call = await scene.run(cost=1, app=GPUAdmission(app, admission=scene.admission))
        assert call.status == 200
        await settle()
        assert scene.in_use == 2000
        done.set()
        await settle()
        assert scene.in_use == 0


async def test_two_tasks_share_while_their_request_runs_and_hold_both_sizes_once_it_is_over() -> None:
    done, may_answer = anyio.Event(), anyio.Event()
    async with scenario() as scene:

        async def work() -> None:
            async with scene.admission.lease(30), scene.admission.lease(40):
                await done.wait()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            scene.group.start_soon(work)
            scene.group.start_soon(work)
            await may_answer.wait()
            await answer(send)

        call = await scene.start(cost=60, app=GPUAdmission(app, admission=scene.admission))
        assert scene.in_use == 60
        may_answer.set()
        await call.done.wait()
        await settle()
        assert scene.in_use == 80
        done.set()
        await settle()
        assert scene.in_use == 0


@pytest.mark.parametrize("door", ["middleware", "starlette", "decorator", "dependency"])
async def test_background_tasks_hold_as_the_response_does_in_every_door(door: str) -> None:
    admission, seen = budget(), []

    async def work() -> None:
        seen.append(admission.in_use)
        async with admission.lease(50):
            seen.append(admission.in_use)

    assert (await post(background(admission, door, work))).status_code == 200
    assert seen == [10, 50]
    assert admission.in_use == 0


@pytest.mark.parametrize("door", ["middleware", "starlette", "decorator", "dependency"])
async def test_n_16_a_job_that_outlives_its_request_is_charged_to_its_end_in_every_door(door: str) -> None:
    admission, done = budget(), anyio.Event()

    async def work() -> None:
        async with admission.lease(50):
            await done.wait()

    async with anyio.create_task_group() as group:

        async def start() -> None:
            group.start_soon(work)
            await settle()

        assert (await post(background(admission, door, start))).status_code == 200
        assert admission.in_use == 50
        with pytest.raises(Rejected):
            await admission.lease(51, timeout=0).__aenter__()
        done.set()
    assert admission.in_use == 0


def background(admission: Admission, door: str, work: Any) -> ASGIApp:
    async def endpoint(request: Request) -> Response:
        return PlainTextResponse("ok", background=BackgroundTask(work))

    if door == "middleware":
        return GPUAdmission(Starlette(routes=[Route("/", endpoint, methods=["POST"])]), admission=admission)
    if door == "starlette":
        return Starlette(routes=[Route("/", admission.admit(endpoint), methods=["POST"])])
    app = FastAPI()
    if door == "decorator":

        @app.post("/")
        @admission.admit
        async def decorated(tasks: BackgroundTasks) -> str:
            tasks.add_task(work)
            return "ok"

    else:

        @app.post("/", dependencies=[Depends(admission.dependency())])
        async def depending(tasks: BackgroundTasks) -> str:
            tasks.add_task(work)
            return "ok"

    return app


# a place of its own


async def test_a_lease_of_its_own_is_refused_in_the_task_that_holds_one() -> None:
    admission = budget()
    async with admission.lease(10):
        with pytest.raises(RuntimeError, match="own=True"):
            await admission.lease(10, own=True).__aenter__()
        with pytest.raises(RuntimeError, match=r"^job\(\.\.\.\) waits") as told:
            await job(admission, 10).__aenter__()
        assert "own" not in str(told.value)
        async with admission.lease(5):
            with pytest.raises(RuntimeError, match="own=True"):
                await admission.lease(10, own=True).__aenter__()
        async with budget().lease(10, own=True):
            pass
    assert admission.in_use == 0


Child = Callable[[], Any]


async def in_a_group(child: Child) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(child)


async def in_a_group_of_a_group(child: Child) -> None:
    await in_a_group(lambda: in_a_group(child))


async def gathered(child: Child) -> None:
    await asyncio.gather(child(), anyio.lowlevel.checkpoint())


async def awaited(child: Child) -> None:
    await asyncio.create_task(child())


async def awaited_by_and_by(child: Child) -> None:
    task = asyncio.create_task(child())
    await settle()
    await task


async def waited_for(child: Child) -> None:
    done, _ = await asyncio.wait([asyncio.create_task(child())])
    await done.pop()


@pytest.mark.parametrize(
    "wait", [in_a_group, in_a_group_of_a_group, gathered, awaited, awaited_by_and_by, waited_for]
)
async def test_a_lease_of_its_own_is_refused_in_a_task_that_the_holder_waits_for(wait: Any) -> None:
    if wait not in (in_a_group, in_a_group_of_a_group) and asyncio._get_running_loop() is None:
        pytest.skip("asyncio's own ways to wait")
    admission = budget(timeout=1000)
    async with admission.lease(60):

        async def child() -> None:
            with pytest.raises(RuntimeError, match=r"^job\(\.\.\.\) waits .* wait for itself"):
                await job(admission, 50).__aenter__()

        with anyio.fail_after(20):
            await wait(child)
    assert (admission.in_use, admission.waiting) == (0, 0)
    assert admission.snapshot().counts == {"admitted": 1}


async def test_a_task_that_a_request_waits_for_only_a_while_waits_in_the_queue() -> None:
    if asyncio._get_running_loop() is None:
        pytest.skip("asyncio's own ways to wait")
    admission = budget()

    async def child() -> None:
        async with admission.lease(50, own=True):
            pass

    async with admission.lease(60):
        task = asyncio.create_task(child())
        await asyncio.wait([task], timeout=0.2)
        assert admission.waiting == 1
    await task
    assert admission.in_use == 0


async def test_a_task_of_a_group_around_the_lease_waits_until_that_has_ended() -> None:
    admission = budget()
    async with anyio.create_task_group() as group, admission.lease(60):

        async def child() -> None:
            async with admission.lease(50, own=True):
                pass

        group.start_soon(child)
        await settle()
        assert admission.waiting == 1
    assert admission.in_use == 0


async def test_a_task_waits_on_where_the_request_that_started_it_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gpu_admission.admission.block._FIRST_LOOK", 0.0)
    admission = budget()
    other = await admission.entrance.acquire(Estimate(60))
    served: list[int] = []

    async def child() -> None:
        async with admission.lease(50, own=True) as lease:
            served.append(lease.bytes)

    async with anyio.create_task_group() as group:
        async with admission.lease(10):
            group.start_soon(child)
            await until(lambda: admission.waiting == 1)
        await settle()
        assert (admission.waiting, served) == (1, [])
        other.release()
    assert (served, admission.in_use) == ([50], 0)


async def test_a_wait_in_vain_says_that_the_request_around_it_holds_bytes() -> None:
    admission = budget(timeout=0.02)
    refused = anyio.Event()
    async with anyio.create_task_group() as group, admission.lease(60):

        async def child() -> None:
            with pytest.raises(Rejected, match=r"holds 60 B of the same budget still: if it waits") as error:
                await admission.lease(50, own=True).__aenter__()
            assert error.value.reason == "queue_timeout"
            refused.set()

        group.start_soon(child)
        await refused.wait()


async def test_a_job_is_entered_once_and_a_second_time_changes_nothing() -> None:
    work = job(budget(), 10)
    async with work:
        with pytest.raises(RuntimeError, match="once"):
            await work.__aenter__()
        states = [work.state]
    assert [*states, work.state] == ["running", "done"]


async def test_a_job_waits_in_the_queue_with_a_place_and_holds_its_bytes_beside_the_request() -> None:
    admission, done = budget(), anyio.Event()
    first, second = job(admission, 60), job(admission, 50, timeout=1000)
    places: list[Any] = []

    async def work(one: Any) -> None:
        async with one:
            await done.wait()

    async with anyio.create_task_group() as group:
        async with admission.lease(10):
            group.start_soon(work, first)
            await settle()
            group.start_soon(work, second)
            await settle()
            places += [first.state, first.place, second.state, second.place, admission.in_use]
        await settle()
        assert places == ["running", None, "waiting", 1, 70]
        assert admission.in_use == 60
        done.set()
    assert (first.state, second.state, admission.in_use) == ("done", "done", 0)


@pytest.mark.parametrize(("error", "state"), [(ValueError(), "failed"), (None, "done")])
async def test_a_job_says_how_it_ended(error: Exception | None, state: str) -> None:
    admission = budget()
    one = job(admission, 10)
    try:
        async with one:
            if error is not None:
                raise error
    except ValueError:
        pass
    assert one.state == state
    refused = job(admission, 101)
    with pytest.raises(TooLarge):
        await refused.__aenter__()
    assert refused.state == "refused"


async def test_a_job_that_is_cancelled_is_stopped_and_leaves_the_queue() -> None:
    admission = budget()
    waiting = job(admission, 100)
    async with anyio.create_task_group() as group, admission.lease(10):

        async def work() -> None:
            async with waiting:
                pass

        group.start_soon(work)
        await settle()
        assert (waiting.state, waiting.place) == ("waiting", 1)
        group.cancel_scope.cancel()
    assert (waiting.state, waiting.place, admission.waiting, admission.in_use) == ("stopped", None, 0, 0)


# threads


async def test_a_thread_waits_through_the_loop_with_a_plain_with() -> None:
    admission = budget()
    seen: list[int] = []

    def work() -> None:
        with admission.lease(50) as lease:
            assert current_lease() is lease
            seen.append(admission.in_use)

    async with anyio.create_task_group() as group:
        async with admission.lease(60):
            thread = threading.Thread(target=work)
            thread.start()
            with anyio.fail_after(10):
                await until(lambda: admission.waiting == 1)
        await anyio.to_thread.run_sync(thread.join)
        group.cancel_scope.cancel()
    assert seen == [50]
    assert admission.in_use == 0


async def test_a_thread_of_a_request_grows_its_lease_without_waiting() -> None:
    admission = budget()

    def work() -> int:
        with pytest.raises(RuntimeError, match="own=True"):
            admission.lease(10, own=True).__enter__()
        with admission.lease(80) as lease:
            return lease.bytes

    async with admission.lease(10):
        assert await anyio.to_thread.run_sync(work) == 80
        assert admission.in_use == 10


async def test_a_plain_with_in_the_loops_own_thread_says_what_to_write() -> None:
    admission = budget()
    with pytest.raises(RuntimeError, match="use `async with`"):
        admission.lease(10).__enter__()
    assert admission.in_use == 0
