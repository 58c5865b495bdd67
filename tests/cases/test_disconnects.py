"""Clients that leave, tasks that are cancelled, and who may receive: BL-03 to BL-07."""

from __future__ import annotations

import asyncio

import anyio
import anyio.lowlevel
import pytest
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import Response

from gpu_admission import GPUAdmission
from gpu_admission.types import Message, Receive, Scope, Send
from tests.cases.harness import (
    Call,
    StreamedCost,
    answer,
    chunks,
    cost,
    read_body,
    scenario,
    settle,
    working,
)

pytestmark = pytest.mark.anyio


# BL-03: the disconnect


async def test_bl_03_the_app_sees_within_one_poll_that_the_client_has_left() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        call: Call = scope["call"]
        request = Request(scope, receive)
        call.read = await request.body()
        assert not await request.is_disconnected()
        call.started.set()
        await call.may_finish.wait()
        assert await request.is_disconnected()

    async with scenario(app) as scene:
        call = await scene.start(b"question", b" in two")
        assert call.started.is_set()
        call.hang_up()
        call.finish()
        await call.done.wait()
        assert call.error is None


async def test_bl_03_an_app_that_had_to_wait_sees_it_within_one_poll_too() -> None:
    """The server's ``receive`` is under way from the queue on: a poll looks at how that came out."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        call: Call = scope["call"]
        request = Request(scope, receive)
        call.read = await request.body()
        for _ in range(3):
            assert not await request.is_disconnected()
        call.started.set()
        await call.may_finish.wait()
        assert await request.is_disconnected()
        assert await request.is_disconnected()

    async with scenario(app) as scene:
        holder = await scene.start(cost=100, app=GPUAdmission(working, admission=scene.admission))
        call = await scene.start(b"question", cost=100)
        assert scene.waiting == 1
        holder.finish()
        await call.started.wait()
        call.hang_up()
        await settle()
        call.finish()
        await call.done.wait()
        assert call.error is None


async def test_bl_03_a_disconnect_that_was_seen_is_returned_on_every_later_call_without_blocking() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        call: Call = scope["call"]
        call.read = await read_body(receive)
        asked = call.receives
        for _ in range(5):
            with anyio.CancelScope() as scope_of_poll:
                scope_of_poll.cancel()
                assert await receive() == {"type": "http.disconnect"}
        assert call.receives == asked

    async with scenario(app, mode="shadow") as scene:
        call = scene.call(messages=chunks(b"half", complete=False))
        call.hang_up()
        await call.run()
        assert call.error is None
        assert call.read == b"half"


async def test_bl_03_a_disconnect_that_comes_with_the_grant_reaches_the_app_or_drops_the_call() -> None:
    async with scenario() as scene:
        holder = await scene.start(cost=100)
        call = await scene.start(b"question", cost=100)
        call.finish()
        holder.finish()
        call.hang_up()
        await call.done.wait()
        assert not call.reached_app or call.error is None


# BL-05: cancellation


async def test_bl_05_a_cancelled_receive_lets_the_cancellation_through() -> None:
    outcomes: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)

        async def watch() -> None:
            try:
                await receive()
                outcomes.append("returned")
            except anyio.get_cancelled_exc_class():
                outcomes.append("cancelled")
                raise

        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            await settle()
            await answer(send)
            group.cancel_scope.cancel()

    async with scenario(app) as scene:
        await scene.run(b"question")
    assert outcomes == ["cancelled"]


async def test_bl_05_waiting_in_the_queue_lets_the_cancellation_through() -> None:
    async with scenario() as scene:
        holder = await scene.start(cost=100)
        call = await scene.start(cost=100)
        assert scene.waiting == 1
        call.cancel()
        await call.done.wait()
        assert call.cancelled
        assert (call.sent, call.error, scene.waiting) == ([], None, 0)
        holder.finish()


async def test_bl_05_a_natively_cancelled_task_ends_cancelled(anyio_backend_name: str) -> None:
    if anyio_backend_name != "asyncio":
        pytest.skip("tasks are cancelled natively on asyncio only")
    async with scenario() as scene:
        holder = await scene.start(cost=100)
        call = scene.call(cost=100)
        task = asyncio.create_task(call.run())
        await settle()
        assert scene.waiting == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (scene.waiting, call.sent) == (0, [])
        holder.finish()


# BL-06: one reader at a time


async def test_bl_06_chunks_that_come_while_the_request_waits_are_not_lost() -> None:
    seen: list[bytes] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        call: Call = scope["call"]
        if call.scope["path"] == "/hold":
            await call.may_finish.wait()
        else:
            seen.extend([piece async for piece in Request(scope, receive).stream()])
        await answer(send)

    async with scenario(app, estimator=StreamedCost()) as scene:
        holder = await scene.start(cost=100, path="/hold")
        call = await scene.start(cost=100, messages=chunks(b"1", complete=False))
        for piece in (b"2", b"3"):
            call.feed(*chunks(piece, complete=False))
            await settle()
        assert scene.admission.snapshot().buffered_bytes == 3
        call.feed(*chunks(b"4", complete=False))
        holder.finish()
        await settle()
        call.feed(*chunks(b"5"))
        await call.done.wait()
    assert seen == [b"1", b"2", b"3", b"4", b"5", b""]


async def test_bl_06_a_long_upload_pauses_while_its_request_waits() -> None:
    async with scenario(estimator=StreamedCost()) as scene:
        holder = await scene.start(cost=100)
        piece = b"x" * 40_000
        call = await scene.start(*[piece] * 10, cost=100)
        assert scene.admission.snapshot().buffered_bytes == 2 * len(piece)
        holder.finish()
        call.finish()
        await call.done.wait()
        assert call.read == piece * 10


async def test_bl_06_a_receive_that_would_drop_its_message_when_cancelled_is_not_cancelled(
    anyio_backend_name: str,
) -> None:
    """Granian's is one, and that of ``BaseHTTPMiddleware`` another. A task of trio's can't be left alone."""
    if anyio_backend_name == "trio":
        pytest.skip("trio has no task that outlives who waits for it")
    for turns in range(8):
        async with scenario(estimator=StreamedCost()) as scene:
            holder = await scene.start(cost=100)
            call = scene.call(cost=100, messages=chunks(b"1", complete=False))
            receive = call.receive

            async def slow(receive: Receive = receive) -> Message:
                message = await receive()
                for _ in range(4):
                    await anyio.lowlevel.checkpoint()
                return message

            call.receive = slow  # type: ignore[method-assign]
            scene.group.start_soon(call.run)
            await settle()
            call.feed(*chunks(b"2", complete=False))
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            holder.finish()
            await settle()
            call.feed(*chunks(b"3"))
            call.finish()
            await call.done.wait()
            assert call.read == b"123"


@pytest.mark.parametrize("way", ["times out", "is cancelled", "is refused"])
async def test_bl_06_a_receive_that_is_under_way_ends_with_its_request(way: str) -> None:
    async with scenario(timeout=0.01 if way == "times out" else 30) as scene:
        holder = await scene.start(cost=100)
        call = await scene.start(b"question", cost=100)
        if way == "is cancelled":
            call.cancel()
        if way == "is refused":
            scene.admission.drain()
        await call.done.wait()
        await settle()
        receives = call.receives
        call.hang_up()
        await settle()
        assert call.receives == receives
        holder.finish()


@pytest.mark.parametrize("reads_first", [True, False])
async def test_bl_06_a_base_http_middleware_outside_changes_nothing(reads_first: bool) -> None:
    """Its ``receive`` runs a task group of its own, which must be left as it was entered."""

    class Outside(BaseHTTPMiddleware):
        async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
            return await call_next(request)

    async with scenario(estimator=cost if reads_first else StreamedCost()) as scene:
        app = Outside(scene.app)
        holder = await scene.start(cost=100, app=app)
        first = [] if reads_first else chunks(b"1", complete=False)
        waiting = [
            await scene.start(cost=100, app=app, messages=[*first, *chunks(b"2", b"3")]) for _ in range(3)
        ]
        assert scene.waiting == 3
        waiting[0].hang_up()
        await waiting[0].done.wait()
        assert (scene.waiting, waiting[0].reached_app) == (2, False)
        for call in (holder, waiting[1], waiting[2]):
            call.finish()
            await call.done.wait()
            assert call.body == b"done"
        assert waiting[2].read == (b"23" if reads_first else b"123")


# BL-07: a client that leaves the queue


@pytest.mark.parametrize("reads_first", [True, False])
async def test_bl_07_a_queued_client_that_leaves_is_forgotten_and_the_next_one_starts(
    reads_first: bool,
) -> None:
    async with scenario(estimator=cost if reads_first else StreamedCost()) as scene:
        holder = await scene.start(cost=100)
        leaver = await scene.start(b"question", cost=100)
        next_one = await scene.start(b"question", cost=100)
        assert scene.waiting == 2
        leaver.hang_up()
        await leaver.done.wait()
        assert scene.waiting == 1
        assert (leaver.reached_app, leaver.sent, leaver.error) == (False, [], None)
        holder.finish()
        await settle()
        assert next_one.reached_app
        next_one.finish()
        counts = scene.admission.snapshot().counts
        assert counts["disconnected"] == 1
        assert "queue_timeout" not in counts
        assert [event.kind for event in scene.events].count("disconnected") == 1


async def test_bl_07_a_client_that_leaves_while_its_body_is_read_is_forgotten() -> None:
    async with scenario() as scene:
        call = await scene.start(messages=chunks(b"half", complete=False))
        call.hang_up()
        await call.done.wait()
        assert (call.reached_app, call.sent, call.error) == (False, [], None)
        assert scene.admission.snapshot().counts["disconnected"] == 1


async def test_bl_07_a_server_whose_receive_fails_is_told_so() -> None:
    """What ``receive`` raises while the client is watched comes out as the same object."""
    failure = ConnectionError("the socket is broken")
    async with scenario() as scene:
        holder = await scene.start(cost=100)
        call = scene.call(b"question", cost=100)
        server = call.receive

        async def receive() -> Message:
            message = await server()
            if message["type"] == "http.disconnect":
                raise failure
            return message

        call.receive = receive  # type: ignore[method-assign]
        scene.group.start_soon(call.run)
        await settle()
        call.hang_up()
        await call.done.wait()
        assert call.error is failure
        assert call.sent == []
        holder.finish()
