"""The replayed body, by itself: messages, counts, and what it is never asked twice."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from gpu_admission import QueueFull, TooLarge
from gpu_admission.admission.buffered import COPIED_BYTES, BufferedBytes
from gpu_admission.errors import ClientLeft
from gpu_admission.http.ahead import Ahead
from gpu_admission.http.body import MANY_MESSAGES, MESSAGE_BYTES, SPOOLED_BEYOND, STEP_MESSAGES, Body
from gpu_admission.settings import Settings
from gpu_admission.types import Message
from tests.cases.harness import chunks, settle

pytestmark = pytest.mark.anyio
GONE = {"type": "http.disconnect"}


class Server:
    """Gives its messages one by one, then waits for ever."""

    def __init__(self, *messages: Message) -> None:
        self._messages = list(messages)
        self.asked = 0
        self.more = anyio.Event()

    async def receive(self) -> Message:
        self.asked += 1
        if not self._messages:
            await self.more.wait()
        return self._messages.pop(0)

    def send(self, message: Message) -> None:
        self._messages.append(message)
        self.more.set()


def body_of(server: Any, limit: int = 1000, buffered: int = 10**6) -> tuple[Body, BufferedBytes]:
    buffer = BufferedBytes(buffered)
    limits = Settings.of({"estimator": 1, "max_body_bytes": limit})
    return Body(server.receive, buffer, limits, {}), buffer


async def test_a_body_that_is_there_already_lets_other_tasks_have_their_turns() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    body, _ = body_of(Server(*chunks(*[b"x"] * 10 * STEP_MESSAGES)), limit=10**6)
    async with anyio.create_task_group() as group:
        group.start_soon(count)
        await body.read()
        group.cancel_scope.cancel()
    assert turns >= 5, "about one for each STEP_MESSAGES"


async def test_what_was_read_is_replayed_as_it_came_and_then_the_server_is_asked() -> None:
    messages = chunks(b"a", b"", b"bc")
    server = Server(*messages, GONE)
    body, buffer = body_of(server)
    await body.read()
    assert (body.size, body.complete, body.content(), buffer.held) == (3, True, b"abc", 3)
    body.hand_over()
    assert buffer.held == 0
    assert [await body() for _ in range(3)] == messages
    assert server.asked == 3
    assert [await body() for _ in range(3)] == [GONE] * 3
    assert server.asked == 4


async def test_a_body_in_one_piece_is_not_copied() -> None:
    piece = b"x" * 100
    body, _ = body_of(Server(*chunks(piece)))
    await body.read()
    assert body.content() is piece


async def test_a_client_that_leaves_while_it_is_read_is_told_and_replayed() -> None:
    body, _ = body_of(Server(*chunks(b"half", complete=False), GONE))
    with pytest.raises(ClientLeft):
        await body.read()
    assert [(await body())["type"] for _ in range(3)] == [
        "http.request",
        "http.disconnect",
        "http.disconnect",
    ]


async def test_messages_of_other_types_are_kept_in_their_place() -> None:
    other = {"type": "http.of.the.future"}
    messages = [*chunks(b"a", complete=False), other, *chunks(b"b")]
    body, _ = body_of(Server(*messages))
    await body.read()
    assert body.content() == b"ab"
    assert [await body() for _ in range(3)] == messages


async def test_the_message_that_is_too_much_is_refused_and_still_replayed() -> None:
    messages = chunks(b"12345", b"678901")
    body, buffer = body_of(Server(*messages), limit=10)
    with pytest.raises(TooLarge, match="max_body_bytes=10 B"):
        await body.read()
    body.hand_over()
    assert buffer.held == 0
    assert [await body() for _ in range(2)] == messages


async def test_a_full_buffer_refuses_and_counts_nothing_of_what_it_refused() -> None:
    body, buffer = body_of(Server(*chunks(b"12345", b"678901")), buffered=10)
    with pytest.raises(QueueFull, match="max_buffered_bytes"):
        await body.read()
    assert buffer.held == 5
    body.hand_over()
    assert buffer.held == 0


async def test_many_small_messages_are_counted_with_what_they_take() -> None:
    body, buffer = body_of(Server(*chunks(*[b"x"] * (MANY_MESSAGES + 10))))
    await body.read()
    assert buffer.held == MANY_MESSAGES + 10 + 10 * MESSAGE_BYTES
    body.hand_over()
    assert buffer.held == 0


async def test_watching_sees_the_client_leave() -> None:
    server = Server(*chunks(b"all"))
    body, _ = body_of(server)
    await body.read()
    async with anyio.create_task_group() as group:
        group.start_soon(body.watch)
        await settle()
        server.send(GONE)
    assert body.disconnected == GONE
    assert body.failure is None


async def test_watching_keeps_what_the_server_raised() -> None:
    class Broken:
        async def receive(self) -> Message:
            raise ConnectionError("broken")

    body, _ = body_of(Broken())
    await body.watch()
    assert isinstance(body.failure, ConnectionError)


async def test_a_call_ahead_is_made_once_and_closed_once(anyio_backend_name: str) -> None:
    server = Server()
    ahead = Ahead(server.receive)
    ahead.close()
    for _ in range(2):
        with anyio.move_on_after(0.01):
            await ahead.call()
    if anyio_backend_name == "trio":
        return
    assert server.asked == 1, "on asyncio the call goes on when nobody waits for it"
    with anyio.move_on_after(0.01):
        await ahead()
    assert server.asked == 1
    server.send(GONE)
    assert await ahead() == GONE
    server.more = anyio.Event()
    with anyio.move_on_after(0.01):
        await ahead.call()
    ahead.close()
    await settle()


async def test_a_call_ahead_that_the_server_cancels_is_not_asked_again(anyio_backend_name: str) -> None:
    if anyio_backend_name == "trio":
        pytest.skip("no task is left alone on trio")
    import asyncio

    async def receive() -> Message:
        raise asyncio.CancelledError

    ahead = Ahead(receive)
    for _ in range(2):
        with pytest.raises(asyncio.CancelledError):
            await ahead.call()


@pytest.mark.parametrize("replays", [False, True], ids=["read", "replayed"])
async def test_many_long_uploads_at_once_are_copied_a_few_mebibytes_in_a_step_of_the_loop(
    replays: bool,
) -> None:
    buffer = BufferedBytes(2**30)
    limits = Settings.of({"estimator": 1})
    bodies = [Body(Server(*chunks(*[bytes(2**16)] * 40)).receive, buffer, limits, {}) for _ in range(20)]
    copied = [0]

    async def replay(body: Body) -> None:
        while (message := await body()).get("more_body"):
            copied[0] += len(message["body"])

    def far() -> int:
        return copied[0] if replays else sum(body.size for body in bodies)

    steps: list[int] = []

    async def look() -> None:
        while True:
            steps.append(far())
            await anyio.lowlevel.checkpoint()

    if replays:
        for body in bodies:
            await body.read()
    async with anyio.create_task_group() as group:
        group.start_soon(look)
        async with anyio.create_task_group() as work:
            for body in bodies:
                work.start_soon(*((replay, body) if replays else (body.read,)))
        group.cancel_scope.cancel()
    kept_as_it_came = 20 * (SPOOLED_BEYOND + 2**17)
    assert far() > 20 * 2**21
    assert max(after - before for before, after in pairwise(steps)) <= 2 * COPIED_BYTES + kept_as_it_came
