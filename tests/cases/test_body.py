"""Request bodies, disconnects and the ASGI contract: BL-01 to BL-19."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from gpu_admission import GPUAdmission, Rejected, current_lease
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

FORM = b"prompt=hello&n=2"
SHAPES = {"three chunks": (FORM[:3], FORM[3:9], FORM[9:]), "one chunk": (FORM,), "empty": (b"",)}
Reader = Callable[[Scope, Receive], Awaitable[bytes]]


# BL-01: the body, whatever way it is read


async def _json(scope: Scope, receive: Receive) -> bytes:
    request = Request(scope, receive)
    if await request.body():
        await request.json()
    return await request.body()


async def _form(scope: Scope, receive: Receive) -> bytes:
    scope["headers"].append((b"content-type", b"application/x-www-form-urlencoded"))
    form = await Request(scope, receive).form()
    return b"&".join(f"{name}={value}".encode() for name, value in form.multi_items())


async def _stream(scope: Scope, receive: Receive) -> bytes:
    return b"".join([piece async for piece in Request(scope, receive).stream()])


async def _by_hand(scope: Scope, receive: Receive) -> bytes:
    return await read_body(receive)


async def _body(scope: Scope, receive: Receive) -> bytes:
    return await Request(scope, receive).body()


READERS: dict[str, Reader] = {"form": _form, "stream": _stream, "loop": _by_hand, "body": _body}


def reading(reader: Reader) -> Any:
    """An app that reads its body with ``reader``, then waits for what comes after it."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        call: Call = scope["call"]
        call.lease = current_lease()
        call.read = await reader(scope, receive)
        asked = call.receives
        await answer(send, b"done")
        call.started.set()
        after = await receive()
        assert call.receives == asked + 1, "what comes after the body is the server's own"
        assert after == {"type": "http.disconnect"}

    return app


@pytest.mark.parametrize("reads_first", [True, False], ids=["body read for the estimate", "body streamed"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("reader", READERS)
async def test_bl_01_the_app_reads_the_body_once_whatever_way_it_reads(
    reader: str, shape: str, reads_first: bool
) -> None:
    app = reading(READERS[reader])
    async with scenario(app, estimator=cost if reads_first else StreamedCost()) as scene:
        call = await scene.start(*SHAPES[shape])
        assert call.read == b"".join(SHAPES[shape])
        assert not call.ended
        call.hang_up()
        await call.done.wait()


async def test_bl_01_json_is_read_by_the_estimator_and_by_the_app() -> None:
    async with scenario(reading(_json), estimator=lambda info: info.json["bytes"]) as scene:
        call = await scene.start(b'{"by', b'tes": ', b"60}")
        assert call.lease is not None
        assert call.lease.bytes == 60
        call.hang_up()


async def test_bl_01_the_messages_are_cut_where_they_were_cut() -> None:
    seen: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while not seen or seen[-1].get("more_body"):
            seen.append(await receive())
        await answer(send)

    sent = [
        {"type": "http.request", "body": b"ab", "more_body": True},
        {"type": "http.request", "more_body": True},
        {"type": "http.request", "body": b"c"},
    ]
    async with scenario(app) as scene:
        await scene.run(messages=sent)
    assert seen == sent


async def test_bl_01_a_get_without_a_body_is_metered_where_asked() -> None:
    async with scenario(reading(_body), methods=["GET"]) as scene:
        call = await scene.start(method="GET", cost=70)
        assert scene.in_use == 70
        assert call.read == b""
        call.hang_up()


async def test_bl_01_a_second_request_object_waits_on_the_servers_own_receive() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        call: Call = scope["call"]
        call.read = await Request(scope, receive).body()
        call.started.set()
        with pytest.raises(ClientDisconnect):
            await Request(scope, receive).body()
        await answer(send)

    async with scenario(app) as scene:
        call = await scene.start(b"once", b" only")
        assert call.read == b"once only"
        assert not call.ended
        call.hang_up()


# BL-02: the replay


@pytest.mark.parametrize("spec_version", ["2.3", "2.4"])
@pytest.mark.parametrize("reads_first", [True, False])
async def test_bl_02_a_stream_is_sent_whole_and_receive_is_not_asked_in_a_loop(
    spec_version: str, reads_first: bool
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async def stream() -> AsyncIterator[bytes]:
            for number in range(5):
                await settle()
                yield b"%d" % number

        await StreamingResponse(stream())(scope, receive, send)

    asgi = {"version": "3.0", "spec_version": spec_version}
    async with scenario(app, estimator=cost if reads_first else StreamedCost()) as scene:
        call = await scene.run(b"question", asgi=asgi)
        assert call.body == b"01234"
        assert call.receives <= 3


async def test_bl_02_after_the_body_receive_blocks_until_the_server_has_something() -> None:
    async with scenario(reading(_by_hand)) as scene:
        call = await scene.start(b"a", b"b")
        assert call.started.is_set()
        assert not call.ended
        assert call.receives == 3
        call.hang_up()


@pytest.mark.parametrize("reads_first", [True, False])
async def test_bl_02_a_receive_that_repeats_the_body_for_ever_does_not_spin_a_waiting_request(
    reads_first: bool,
) -> None:
    """A middleware outside may replace ``receive`` by one that always returns the body, at once."""
    async with scenario(estimator=cost if reads_first else StreamedCost()) as scene:
        holder = await scene.start(cost=100)
        asked = 0

        async def receive() -> Message:
            nonlocal asked
            asked += 1
            assert asked < 10, "receive is called in a loop"
            return {"type": "http.request", "body": b"again", "more_body": False}

        call = scene.call(b"again", cost=100)
        call.receive = receive  # type: ignore[method-assign]
        scene.group.start_soon(call.run)
        await settle()
        assert scene.waiting == 1
        holder.finish()
        call.finish()
        await call.done.wait()
        assert call.status == 200
        assert call.read == b"again"


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


# BL-08: background tasks


@pytest.mark.parametrize(("hold", "held"), [("app", 60), ("response", 0)])
async def test_bl_08_a_background_task_ends_by_itself_although_the_client_closed(
    hold: str, held: int
) -> None:
    ended: list[bool] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        call: Call = scope["call"]
        await read_body(receive)

        async def background() -> None:
            call.started.set()
            await call.may_finish.wait()
            ended.append(True)

        await Response(b"ok", background=BackgroundTask(background))(scope, receive, send)

    async with scenario(app, hold=hold) as scene:
        call = await scene.start(b"question", cost=60)
        assert call.body == b"ok"
        call.hang_up()
        await settle()
        assert scene.in_use == held
        assert not call.ended
        call.finish()
        await call.done.wait()
        assert ended == [True]


# BL-09: errors after the response started


class OutOfMemoryError(RuntimeError):
    """Looks like torch's."""


OutOfMemoryError.__module__ = "torch"


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ValueError("boom"), "error"),
        (OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "oom"),
        (Rejected("queue_full", "from a nested call"), "error"),
    ],
    ids=["plain", "out of memory", "nested refusal"],
)
async def test_bl_09_an_error_after_the_response_started_comes_out_as_it_is(
    error: Exception, outcome: str
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"part", "more_body": True})
        raise error

    async with scenario(app) as scene:
        call = await scene.run(b"question")
        assert call.error is error
        assert len(call.starts) == 1
        assert call.body == b"part"
        released = [event for event in scene.events if event.kind == "released"]
        assert [event.outcome for event in released] == [outcome]


async def test_bl_09_growing_a_lease_past_the_capacity_inside_the_app_is_the_apps_error() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        lease = current_lease()
        assert lease is not None
        await send({"type": "http.response.start", "status": 200, "headers": []})
        lease.resize(101)

    async with scenario(app) as scene:
        call = await scene.run(b"question")
        assert isinstance(call.error, Rejected)
        assert len(call.starts) == 1


async def test_bl_09_what_the_failed_app_held_is_freed_as_soon_as_its_error_is() -> None:
    """A cycle through the error would keep the frames, and so the tensors, until a collection."""

    class Tensor:
        pass

    refs: list[weakref.ref[Tensor]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        tensor = Tensor()
        refs.append(weakref.ref(tensor))
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    outer = GPUAdmission(app, capacity=100, estimator=cost)
    gc.disable()
    try:
        for _ in range(2):
            call = Call(outer, b"question")
            with pytest.raises(OutOfMemoryError):
                await outer(call.scope, call.receive, call.send)
        assert [ref() for ref in refs] == [None, None]
    finally:
        gc.enable()


# BL-10: nothing was answered


async def test_bl_10_an_app_that_answers_nothing_to_a_client_that_left_is_left_alone() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)
        assert (await receive())["type"] == "http.disconnect"

    async with scenario(app) as scene:
        call = await scene.start(b"question", cost=60)
        call.hang_up()
        await call.done.wait()
        assert (call.sent, call.error) == ([], None)


# BL-11: exceptions keep their identity


@pytest.mark.parametrize(
    "error",
    [ZeroDivisionError("custom"), HTTPException(418), asyncio.CancelledError(), KeyboardInterrupt()],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("waits", [False, True])
async def test_bl_11_the_very_same_exception_comes_out(error: BaseException, waits: bool) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        call: Call = scope["call"]
        if call.scope["path"] == "/hold":
            await call.may_finish.wait()
            await answer(send)
            return
        raise error

    async with scenario(app) as scene:
        holder = await scene.start(path="/hold", cost=100 if waits else 1)
        call = Call(scene.app, b"question", cost=99)
        if waits:
            scene.group.start_soon(_finish_later, holder)
        with pytest.raises(type(error)) as caught:
            await scene.app(call.scope, call.receive, call.send)
        assert caught.value is error
        holder.finish()


async def _finish_later(call: Call) -> None:
    await settle()
    call.finish()


# BL-14: context variables


async def test_bl_14_context_variables_pass_in_both_directions() -> None:
    inside: ContextVar[str] = ContextVar("inside", default="unset")
    outside: ContextVar[str] = ContextVar("outside", default="unset")
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)
        seen.append(outside.get())
        inside.set("by the endpoint")
        await answer(send)

    async with scenario(app) as scene:
        call = Call(scene.app, b"question")
        outside.set("by the wrapper")
        await scene.app(call.scope, call.receive, call.send)
        assert seen == ["by the wrapper"]
        assert inside.get() == "by the endpoint"
        assert current_lease() is None


async def test_bl_14_the_scope_is_the_same_object_and_is_left_clean() -> None:
    seen: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append((scope, scope["gpu_admission.lease"], current_lease()))
        scope["route"] = "written by the router"
        await answer(send)

    async with scenario(app) as scene:
        call = await scene.run(b"question")
        ((scope, in_scope, current),) = seen
        assert scope is call.scope
        assert in_scope is current
        assert call.scope["route"] == "written by the router"
        assert "gpu_admission.lease" not in call.scope


# BL-15: other scopes


@pytest.mark.parametrize("kind", ["lifespan", "websocket", "foo"])
async def test_bl_15_other_scopes_pass_through_untouched(kind: str) -> None:
    seen: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append((scope, receive, await receive()))
        await send({"type": f"{kind}.answer"})

    async with scenario(app) as scene:
        scope: Scope = {"type": kind}
        sent: list[Message] = []

        async def receive() -> Message:
            return {"type": f"{kind}.startup"}

        async def send(message: Message) -> None:
            sent.append(message)

        await scene.app(scope, receive, send)
        assert seen == [(scope, receive, {"type": f"{kind}.startup"})]
        assert seen[0][0] is scope
        assert scope == {"type": kind}
        assert sent == [{"type": f"{kind}.answer"}]
        assert {event.kind for event in scene.events} <= {"started"}


async def test_bl_15_the_startup_and_shutdown_of_the_app_behind_run() -> None:
    ran: list[str] = []

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        ran.append("startup")
        yield
        ran.append("shutdown")

    app = GPUAdmission(Starlette(lifespan=lifespan), capacity=100, estimator=1)
    coming = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    sent: list[Message] = []

    async def receive() -> Message:
        return coming.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)
    assert ran == ["startup", "shutdown"]
    assert [m["type"] for m in sent] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


# BL-17: no lifespan at all


async def test_bl_17_twenty_cold_requests_at_once_need_no_startup() -> None:
    async with scenario() as scene:
        calls = [scene.call(b"question", cost=10) for _ in range(20)]
        for call in calls:
            scene.group.start_soon(call.run)
        await settle()
        assert (scene.in_use, scene.waiting) == (100, 10)
        for call in calls:
            call.finish()
        for call in calls:
            await call.done.wait()
            assert call.status == 200


# BL-18: built twice


async def test_bl_18_a_rebuilt_middleware_stack_shares_the_budget_that_it_was_given() -> None:
    async with scenario() as scene:
        again = GPUAdmission(scene.app.app, admission=scene.admission)  # type: ignore[attr-defined]
        first = await scene.start(b"question", cost=60)
        second = await scene.start(b"question", cost=60, app=again)
        assert (scene.in_use, scene.waiting) == (60, 1)
        first.finish()
        second.finish()


async def test_bl_18_two_apps_with_equal_settings_have_a_budget_each() -> None:
    one = GPUAdmission(answering, capacity=100, estimator=1)
    other = GPUAdmission(answering, capacity=100, estimator=1)
    assert one.admission is not other.admission


async def answering(scope: Scope, receive: Receive, send: Send) -> None:
    await answer(send)


# BL-19: answers without a body


@pytest.mark.parametrize(("reason", "status"), [("queue_full", 429), ("too_large", 413), ("draining", 503)])
async def test_bl_19_a_refused_head_request_gets_headers_only(reason: str, status: int) -> None:
    async with scenario(methods=["POST", "HEAD"], max_waiting=0) as scene:
        holder = await scene.start(cost=100)
        if reason == "draining":
            scene.admission.drain()
        call = await scene.run(method="HEAD", cost=101 if reason == "too_large" else 50)
        assert call.status == status
        assert call.headers["x-gpu-admission-reason"] == reason
        assert call.body == b""
        assert call.sent[-1] == {"type": "http.response.body", "body": b""}
        holder.finish()


async def test_bl_19_nothing_is_added_to_an_answer_that_has_no_body() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(status_code=204)(scope, receive, send)

    async with scenario(app) as scene:
        call = await scene.run(b"question")
        plain = Call(app, b"question")
        await plain.run()
        assert call.sent == plain.sent
