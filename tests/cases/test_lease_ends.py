"""One lease, one end: ended twice, elsewhere, or by a generator that is dropped: BL-53, BL-57."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from fastapi import FastAPI
from starlette.responses import StreamingResponse

from gpu_admission import Admission, current_lease
from gpu_admission.types import ASGIApp, Receive, Scope, Send
from tests.cases.harness import scenario, settle, working

pytestmark = pytest.mark.anyio


# BL-53: ended twice, or elsewhere


async def test_bl_53_releasing_again_changes_nothing() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        lease = current_lease()
        assert lease is not None
        lease.release()
        assert current_lease() is None
        lease.release()
        await working(scope, receive, send)
        lease.release()

    async with scenario(app) as scene:
        call = await scene.start(cost=100)
        assert scene.in_use == 0
        other = await scene.start(cost=100)
        assert scene.in_use == 0
        call.finish()
        other.finish()
        await other.done.wait()
        assert [event.kind for event in scene.events].count("released") == 2


async def test_bl_53_a_lease_may_end_in_another_task_or_thread() -> None:
    async with scenario() as scene:
        lease = scene.admission.lease(60)
        taken = await lease.__aenter__()

        async def in_another_task() -> None:
            taken.release()

        async with anyio.create_task_group() as group:
            group.start_soon(in_another_task)
        assert scene.in_use == 0
        await lease.__aexit__(None, None, None)

        async with scene.admission.lease(100) as held:
            waiter = await scene.start(cost=100, app=_bare(scene.app))
            assert scene.waiting == 1
            await anyio.to_thread.run_sync(held.release)
            with anyio.fail_after(10):
                await waiter.started.wait()
        waiter.finish()


def _bare(app: ASGIApp) -> ASGIApp:
    """``app`` outside of the lease that the test itself holds."""

    async def bare(scope: Scope, receive: Receive, send: Send) -> None:
        from gpu_admission.admission.context import _current

        _current.set(None)
        await app(scope, receive, send)

    return bare


async def test_bl_53_a_kept_lease_ends_with_its_last_handle() -> None:
    handles: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        lease = current_lease()
        assert lease is not None
        handles.extend([lease.keep(), lease.keep()])
        await working(scope, receive, send)

    async with scenario(app) as scene:
        call = await scene.start(cost=60)
        handles[0].close()
        handles[0].close()
        call.finish()
        await call.done.wait()
        assert scene.in_use == 60
        with handles[1]:
            assert scene.in_use == 60
        assert scene.in_use == 0


async def test_bl_53_an_ended_lease_can_neither_be_kept_nor_resized() -> None:
    async with scenario() as scene:
        async with scene.admission.lease(60) as lease:
            pass
        with pytest.raises(RuntimeError, match="has ended"):
            lease.keep()
        with pytest.raises(RuntimeError, match="has ended"):
            lease.resize(1)
        assert scene.in_use == 0


# BL-57: generators that are closed elsewhere


async def _holding(admission: Admission) -> AsyncIterator[int]:
    async with admission.lease(60) as lease:
        yield lease.bytes
        yield lease.bytes


async def test_bl_57_a_generator_that_holds_a_lease_may_be_closed_by_another_task() -> None:
    async with scenario() as scene:
        holding = _holding(scene.admission)
        assert await anext(holding) == 60
        assert scene.in_use == 60

        async def close() -> None:
            await holding.aclose()  # type: ignore[attr-defined]

        async with anyio.create_task_group() as group:
            group.start_soon(close)
        assert scene.in_use == 0
        assert current_lease() is None


async def collected(backend: str, condition: Callable[[], bool]) -> None:
    """What was dropped is collected; trio warns of a generator that nobody closed."""
    expected = (
        pytest.warns(ResourceWarning, match="garbage collected") if backend == "trio" else nullcontext()
    )
    with expected:
        gc.collect()
        await settle()
    assert condition()


async def test_bl_57_a_generator_that_holds_a_lease_may_be_collected(anyio_backend_name: str) -> None:
    async with scenario() as scene:
        dropped: list[Any] = [_holding(scene.admission)]
        assert await anext(dropped[0]) == 60
        dropped.append(dropped)  # so that the collector must free it
        del dropped
        await collected(anyio_backend_name, lambda: scene.in_use == 0)


async def test_bl_57_a_lease_whose_end_meets_a_change_of_the_ledger_ends_all_the_same() -> None:
    """The collector may end one in the very thread, and at the very time, that changes the ledger."""
    async with scenario() as scene:
        admission = scene.admission
        context = admission.lease(60)
        lease = await context.__aenter__()
        with admission.locked:
            lease.release()
        await settle()
        assert scene.in_use == 0


async def test_bl_57_a_stream_that_is_cut_off_gives_its_bytes_back(anyio_backend_name: str) -> None:
    async with scenario() as scene:
        app = FastAPI()

        @app.post("/work")
        async def stream() -> StreamingResponse:
            async def tokens() -> AsyncIterator[bytes]:
                async with scene.admission.lease(60):
                    while True:
                        yield b"token"
                        await anyio.lowlevel.checkpoint()

            return StreamingResponse(tokens())

        call = scene.call(app=app)
        call.send_fails_at = 3
        await call.run()
        assert call.error is not None
        call.error = None
        scene.calls.clear()
        await collected(anyio_backend_name, lambda: scene.in_use == 0)
