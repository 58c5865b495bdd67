"""Nothing of a refused request stays in memory: not while it is answered, nor until a collection."""

from __future__ import annotations

import gc
import gzip
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest
from fastapi import Depends, FastAPI, Request
from starlette.responses import JSONResponse, Response

from gpu_admission import Admission, Estimate, GPUAdmission, Rejected, RequestInfo
from gpu_admission.estimators import Linear
from gpu_admission.types import ASGIApp, Message
from tests.cases.harness import Call

pytestmark = pytest.mark.anyio
MIB = 2**20
PATH = "/v1/chat/completions"
SMALL = MIB // 4
"""Bytes that a request may take beyond its body: frames, headers, the answer."""
PROSE = b'{"messages":[{"role":"user","content":"%s"}]}' % (b"a " * MIB)
TOO_MANY = b'{"messages":[%s1]}' % (b"[]," * (MIB // 2))
BROKEN = PROSE[:-1]
ESTIMATOR = Linear({"prompt_tokens": 1, "new_tokens": 1})


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    """What only a collection frees counts as kept."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def fails(info: RequestInfo) -> int:
    text = info.body.decode()
    raise KeyError(text[:10])


async def fails_later(info: RequestInfo) -> int:
    text = info.body.decode()
    await anyio.lowlevel.checkpoint()
    raise KeyError(text[:10])


async def answered(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body"})


def middleware(admission: Admission) -> ASGIApp:
    return GPUAdmission(answered, admission=admission)


def decorated(admission: Admission) -> ASGIApp:
    app = FastAPI()

    @app.post(PATH)
    @admission.admit
    async def work(request: Request) -> None:
        await request.body()

    return app


def dependency(admission: Admission) -> ASGIApp:
    app = FastAPI()

    @app.post(PATH, dependencies=[Depends(admission.dependency())])
    async def work(request: Request) -> None:
        await request.body()

    return app


class Client(Call):
    """Notes how much more is held while its answer is sent, and after it.

    Its ``body`` is cut into messages of ``step`` bytes as they are asked for, and held by nobody else.
    """

    def __init__(self, app: ASGIApp, body: bytes, step: int, **more: Any) -> None:
        super().__init__(app, messages=[], path=PATH, **more)
        self._content = body
        self._step = step
        self._at = 0
        self.leaves_at = len(body)
        self.kept: list[int] = []

    async def receive(self) -> Message:
        at, self._at = self._at, self._at + self._step
        if at and at >= self.leaves_at:
            if self.leaves_at < len(self._content):
                return {"type": "http.disconnect"}
            return await super().receive()
        body = bytes(memoryview(self._content)[at : self._at])
        return {"type": "http.request", "body": body, "more_body": self._at < len(self._content)}

    async def send(self, message: Message) -> None:
        self.kept.append(tracemalloc.get_traced_memory()[0])
        await super().send(message)

    async def measure(self) -> None:
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            await self.run()
            self.kept = [held - before for held in (*self.kept, tracemalloc.get_traced_memory()[0])]
        finally:
            tracemalloc.stop()


PACKED = [(b"content-encoding", b"gzip")]
JSON = [(b"content-type", b"application/json")]


@pytest.mark.parametrize("door", [middleware, decorated, dependency])
@pytest.mark.parametrize("step", [64 * 1024, 64 * MIB], ids=["pieces", "whole"])
@pytest.mark.parametrize(
    ("body", "headers", "options", "status"),
    [
        pytest.param(PROSE, [], {"max_buffered_bytes": MIB}, 429, id="buffer full"),
        pytest.param(PROSE, [], {"max_body_bytes": MIB}, 413, id="too large"),
        pytest.param(BROKEN, [], {}, 400, id="broken"),
        pytest.param(gzip.compress(BROKEN, 0), PACKED, {}, 400, id="broken and packed"),
        pytest.param(gzip.compress(PROSE, 0)[:-9], PACKED, {}, 400, id="cut short"),
        pytest.param(TOO_MANY, [], {}, 413, id="too complex"),
        pytest.param(PROSE, [], {"capacity": 10}, 413, id="never fits"),
        pytest.param(PROSE, [], {"timeout": 0}, 429, id="too late"),
        pytest.param(PROSE, [], {"timeout": 0, "estimator": fails, "fallback": 100}, 429, id="fails"),
        pytest.param(PROSE, [], {"timeout": 0, "estimator": fails_later, "fallback": 100}, 429, id="later"),
        pytest.param(BROKEN, [], {"timeout": 0, "fallback": 100}, 429, id="fallback"),
    ],
)
async def test_while_a_refusal_is_sent_and_after_it_nothing_of_the_body_is_held(
    door: Callable[[Admission], ASGIApp],
    step: int,
    body: bytes,
    headers: list[tuple[bytes, bytes]],
    options: dict[str, Any],
    status: int,
) -> None:
    admission = Admission(**{"capacity": 10 * MIB, "estimator": ESTIMATOR, **options})
    held = (
        await admission.entrance.acquire(Estimate(admission.largest)) if options.get("timeout") == 0 else None
    )
    app = door(admission)
    await Client(app, b'{"messages":[]}', step, headers=JSON).measure()  # what is made once
    call = Client(app, body, step, headers=[*JSON, *headers])
    await call.measure()
    assert call.status == status
    assert max(call.kept) < SMALL
    assert admission.snapshot().buffered_bytes == 0
    if held is not None:
        held.release()


async def test_nothing_is_held_of_a_client_that_left_in_the_middle_of_its_upload() -> None:
    app = middleware(Admission(capacity=MIB, estimator=ESTIMATOR))
    await Client(app, b"{}", MIB).measure()
    call = Client(app, PROSE, 64 * 1024)
    call.leaves_at = MIB
    await call.measure()
    assert not call.sent
    assert max(call.kept) < SMALL


async def test_a_body_that_can_not_be_held_is_refused_by_its_length_before_it_is_received() -> None:
    admission = Admission(capacity=MIB, estimator=ESTIMATOR, max_buffered_bytes=MIB)
    call = Call(middleware(admission), PROSE, headers=[(b"content-length", b"%d" % len(PROSE))])
    await call.run()
    assert call.receives == 0
    assert call.problem()["reason"] == "queue_full"
    assert "max_buffered_bytes=1.00 MiB" in call.problem()["detail"]


async def test_a_length_that_nobody_buffers_is_no_reason_to_refuse() -> None:
    admission = Admission(capacity=MIB, estimator=1, max_buffered_bytes=MIB)
    call = Call(middleware(admission), PROSE, headers=[(b"content-length", b"%d" % len(PROSE))])
    await call.run()
    assert call.status == 200


@pytest.mark.parametrize("headers", [[], PACKED])
async def test_an_on_reject_that_reads_the_body_leaves_no_copy_counted(
    headers: list[tuple[bytes, bytes]],
) -> None:
    def told(info: RequestInfo, rejected: Rejected) -> Response:
        return JSONResponse({"roles": [each["role"] for each in info.json["messages"]]}, rejected.status)

    admission = Admission(capacity=10, estimator=ESTIMATOR, on_reject=told)
    body = gzip.compress(PROSE) if headers else PROSE
    call = Call(middleware(admission), *(body[at : at + 1000] for at in range(0, len(body), 1000)))
    call.scope["headers"] += headers
    await call.run()
    assert (call.status, call.body) == (413, b'{"roles":["user"]}')
    assert admission.snapshot().buffered_bytes == 0
