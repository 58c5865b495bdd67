"""Work in threads that outlives its request: BL-52."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, nullcontext
from typing import Any

import anyio
import anyio.to_thread
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from gpu_admission import Admission, GPUAdmission, Lease, current_lease
from gpu_admission.admission.threads import run_in_thread
from gpu_admission.serving import offload
from gpu_admission.types import ASGIApp, Receive, Scope, Send
from tests.cases.harness import Call, Scene, answer, read_body, scenario, until

pytestmark = pytest.mark.anyio


class Job:
    """Blocking work on the device: runs in a thread until told to end."""

    def __init__(self) -> None:
        self.running = threading.Event()
        self.may_end = threading.Event()
        self.ended = False
        self.lease: Any = None

    def __call__(self) -> str:
        self.lease = current_lease()
        self.running.set()
        assert self.may_end.wait(10)
        self.ended = True
        return "done"


def app_of(door: str, admission: Admission, job: Job) -> ASGIApp:
    if door == "offload":

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await read_body(receive)
            await offload(job)
            await answer(send)

        return GPUAdmission(app, admission=admission)
    if door == "starlette":

        @admission.admit
        def starlette_endpoint(request: Request) -> PlainTextResponse:
            return PlainTextResponse(job())

        return Starlette(routes=[Route("/work", starlette_endpoint, methods=["POST"])])
    fastapi = FastAPI()

    @fastapi.post("/work")
    @admission.admit
    def fastapi_endpoint() -> str:
        return job()

    return fastapi


DOORS = ["offload", "starlette", "fastapi"]


@pytest.mark.parametrize("door", DOORS)
async def test_bl_52_bytes_are_held_until_the_thread_has_returned(door: str) -> None:
    job = Job()
    async with scenario() as scene:
        call = await scene.start(cost=60, app=app_of(door, scene.admission, job))
        await until(job.running.is_set)
        assert scene.in_use == 60
        assert job.lease.bytes == 60
        job.may_end.set()
        await call.done.wait()
        assert call.status == 200


@pytest.mark.parametrize("door", DOORS)
async def test_bl_52_a_cancelled_request_holds_its_bytes_while_its_thread_works(
    door: str, anyio_backend_name: str
) -> None:
    """A natively cancelled task leaves its thread behind at once; a cancelled scope waits for it."""
    job = Job()
    async with scenario() as scene:
        call = scene.call(cost=60, app=app_of(door, scene.admission, job))
        ended = await _start_and_cancel(scene, call, job, anyio_backend_name)
        assert scene.in_use == 60
        assert not job.ended
        waiter = await scene.start(cost=60)
        assert scene.waiting == 1
        job.may_end.set()
        await ended.wait()
        await until(lambda: waiter.reached_app)
        assert job.ended
        assert scene.in_use == 60
        waiter.finish()


async def _start_and_cancel(scene: Scene, call: Call, job: Job, backend: str) -> anyio.Event:
    if backend == "trio":
        scene.group.start_soon(call.run)
        await until(job.running.is_set)
        call.cancel()
        return call.done
    task = asyncio.create_task(call.run())
    await until(job.running.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return call.done


async def test_bl_52_a_decorated_timeout_does_not_free_the_bytes_of_its_thread(
    anyio_backend_name: str,
) -> None:
    if anyio_backend_name != "asyncio":
        pytest.skip("asyncio.wait_for")
    job = Job()
    async with scenario() as scene:

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            work = asyncio.ensure_future(offload(job))
            await until(job.running.is_set)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(work, 0)
            await answer(send, status=504)

        call = await scene.run(cost=60, app=GPUAdmission(app, admission=scene.admission))
        assert call.status == 504
        assert scene.in_use == 60
        job.may_end.set()
        await until(lambda: scene.in_use == 0)


async def test_bl_52_work_that_no_thread_has_taken_up_never_runs_and_holds_nothing() -> None:
    job = Job()
    limiter = anyio.CapacityLimiter(1)
    async with scenario() as scene:
        async with limiter, scene.admission.lease(60) as lease:
            with anyio.move_on_after(0):
                await run_in_thread(lease, job, limiter)
        assert scene.in_use == 0
        assert not job.running.is_set()


async def test_bl_52_a_thread_that_comes_too_late_runs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The task was cancelled when its work was handed over, and no thread had begun with it."""
    handed_over: list[Callable[[], object]] = []

    async def run_sync(work: Callable[[], object], **options: Any) -> None:
        handed_over.append(work)
        raise ZeroDivisionError

    job = Job()
    async with scenario() as scene:
        async with scene.admission.lease(60) as lease:
            with monkeypatch.context() as patch:
                patch.setattr(anyio.to_thread, "run_sync", run_sync)
                with pytest.raises(ZeroDivisionError):
                    await run_in_thread(lease, job)
        assert scene.in_use == 0
        assert handed_over[0]() is None
        assert not job.running.is_set()


async def test_bl_52_what_the_thread_raises_comes_out_and_its_bytes_come_back() -> None:
    def fails() -> None:
        raise ZeroDivisionError

    async with scenario() as scene, scene.admission.lease(60) as lease:
        with pytest.raises(ZeroDivisionError):
            await offload(fails)
        assert scene.in_use == 60
        assert lease.handles == 0


async def test_bl_52_offload_outside_of_a_request_is_a_plain_thread() -> None:
    assert await offload(lambda a, b: a + b, 1, b=2) == 3


async def test_bl_52_the_limit_of_the_promise_is_a_thread_that_nobody_told_of(
    anyio_backend_name: str,
) -> None:
    """A hand-made thread under a natively cancelled task is out of sight; ``keep`` is for it."""
    if anyio_backend_name != "asyncio":
        pytest.skip("only asyncio's own cancellation abandons a thread")
    for handle_of in (lambda lease: nullcontext(), Lease.keep):
        job = Job()
        async with scenario(_in_a_hand_made_thread(job, handle_of)) as scene:
            call = scene.call(cost=60)
            task = asyncio.create_task(call.run())
            await until(job.running.is_set)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert scene.in_use == (60 if handle_of is Lease.keep else 0)
            job.may_end.set()
            await until(lambda: scene.in_use == 0)


def _in_a_hand_made_thread(job: Job, handle_of: Callable[[Lease], Any]) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        lease = current_lease()
        assert lease is not None
        handle = handle_of(lease)

        def work() -> None:
            with handle:
                job()

        await asyncio.to_thread(work)

    return app


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_lease_that_is_granted_as_its_thread_looks_up_is_the_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread's wait ran out in the very moment in which the lease came."""

    def submit(coroutine: Any, loop: asyncio.AbstractEventLoop) -> Future[Any]:
        future = asyncio_submit(coroutine, loop)
        result = future.result

        def late(timeout: float | None = None) -> Any:
            if timeout is None:
                return result()
            result()
            raise TimeoutError

        future.result = late  # type: ignore[method-assign]
        return future

    asyncio_submit = asyncio.run_coroutine_threadsafe
    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", submit)
    admission = Admission(capacity=10, estimator=1)
    async with admission.lease(1):
        pass

    def work() -> int:
        with admission.lease(10):
            return admission.snapshot().in_use

    assert await anyio.to_thread.run_sync(work) == 10
    assert admission.snapshot().in_use == 0


def test_a_thread_that_waits_hears_that_its_loop_has_ended(anyio_backend_name: str) -> None:
    admission, kept, errors = Admission(capacity=10, estimator=1), ExitStack(), list[BaseException]()

    def work() -> None:
        try:
            with admission.lease(10):
                raise AssertionError
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)

    async def main() -> None:
        async with admission.lease(5) as lease:
            kept.enter_context(lease.keep())
            thread.start()
            await until(lambda: admission.snapshot().waiting == 1)

    anyio.run(main, backend=anyio_backend_name)
    thread.join(20)
    assert [type(error) for error in errors] == [RuntimeError]
    assert "the event loop has ended" in str(errors[0])
    kept.close()
    assert (admission.snapshot().in_use, admission.snapshot().waiting) == (0, 0)
