"""A request's body reaches the app once, as it was sent: BL-01, BL-02."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.responses import StreamingResponse

from gpu_admission import current_lease
from gpu_admission.types import Message, Receive, Scope, Send
from tests.cases.harness import (
    Call,
    StreamedCost,
    answer,
    cost,
    read_body,
    scenario,
    settle,
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
