"""``Server-Timing``: told only where it is asked for, beside what the app says."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from gpu_admission import Estimate, GPUAdmission
from gpu_admission.types import Message, Receive, Scope, Send

pytestmark = pytest.mark.anyio


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    await Request(scope, receive).body()
    response: Response = PlainTextResponse("done", headers={"server-timing": "app;dur=5"})
    await response(scope, receive, send)


async def answer(app: GPUAdmission) -> list[Message]:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    await app({"type": "http", "method": "POST", "path": "/", "headers": []}, receive, send)
    return sent


def timings(sent: list[Message]) -> list[bytes]:
    return [value for name, value in sent[0]["headers"] if name == b"server-timing"]


async def test_it_is_not_told_by_default() -> None:
    assert timings(await answer(GPUAdmission(app, capacity=100, estimator=1))) == [b"app;dur=5"]


@pytest.mark.parametrize("hold", ["app", "response"])
async def test_the_time_in_the_queue_is_added_in_milliseconds(hold: Any) -> None:
    own, queue = timings(
        await answer(GPUAdmission(app, capacity=100, estimator=1, server_timing=True, hold=hold))
    )
    assert own == b"app;dur=5"
    assert queue == b"gpu_queue;dur=0.0"


async def test_who_has_waited_is_told_how_long() -> None:
    middleware = GPUAdmission(app, capacity=100, estimator=60, server_timing=True)
    lease = await middleware.admission.entrance.acquire(Estimate(60))
    async with anyio.create_task_group() as group:
        answers: list[list[Message]] = []

        async def ask() -> None:
            answers.append(await answer(middleware))

        group.start_soon(ask)
        while not middleware.admission.snapshot().waiting:
            await anyio.lowlevel.checkpoint()
        waiting = next(iter(middleware.admission.locked.ledger.lanes[0].tickets()))
        waiting.arrived -= 1.5
        lease.release()
    _, queue = timings(answers[0])
    assert 1500 <= float(queue.partition(b"dur=")[2]) < 60_000


async def test_the_message_of_the_app_is_left_as_it_is() -> None:
    start: Message = {"type": "http.response.start", "status": 204}

    async def bare(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start)
        await send({"type": "http.response.body"})

    sent = await answer(GPUAdmission(bare, capacity=100, estimator=1, server_timing=True))
    assert timings(sent) == [b"gpu_queue;dur=0.0"]
    assert start == {"type": "http.response.start", "status": 204}
    assert sent[1] == {"type": "http.response.body"}
