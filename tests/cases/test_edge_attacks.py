"""What a hostile or unlucky client can do at the edge: memory, time, places and limits."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import logging
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from fastapi import Depends, FastAPI, Request, UploadFile
from fastapi.testclient import TestClient
from starlette.applications import Starlette
from starlette.requests import Request as StarletteRequest
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from gpu_admission import Admission, Estimate, GPUAdmission, Lane, RequestInfo, current_lease
from gpu_admission.bodies import large
from gpu_admission.bodies.large import AT_ONCE, LARGE_BYTES, LARGEST_AT_ONCE, MEDIUM_BYTES
from gpu_admission.budget.ledger import Ledger
from gpu_admission.budget.ticket import Ticket
from gpu_admission.http import body as http_body
from gpu_admission.rules.classifiers import by_tokens
from gpu_admission.types import Message, Receive, Scope, Send
from tests.cases.harness import (
    Call,
    StreamedCost,
    answer,
    chunks,
    http_scope,
    read_body,
    scenario,
    settle,
    until,
    working,
)

pytestmark = pytest.mark.anyio
MIB = 2**20
GZIP = [(b"content-encoding", b"gzip")]


class Reading:
    """An estimator that says how many read at once, and goes on when it may."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.now = 0
        self.most = 0
        self.sizes: list[int] = []
        self._lock = threading.Lock()

    def __call__(self, info: RequestInfo) -> int:
        size = len(info.body)
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
            self.sizes.append(size)
        self.may_go_on.wait(20)
        with self._lock:
            self.now -= 1
        return 1


async def waiting_to_be_read(
    scene: Any, reading: Reading, pieces: tuple[bytes, ...], count: int
) -> list[Call]:
    """``count`` requests, of which as many as may are being read, and the others wait for that."""
    calls = [await scene.start(*pieces) for _ in range(count)]
    await until(lambda: reading.now == min(count, LARGEST_AT_ONCE))
    await settle()
    return calls


# C1: what waits to be read is held once, and counted


async def test_c1_large_bodies_are_joined_only_when_it_is_their_turn_and_then_counted() -> None:
    reading, half = Reading(), b"x" * (MEDIUM_BYTES // 2 + 1)
    async with scenario(estimator=reading) as scene:
        calls = await waiting_to_be_read(scene, reading, (half, half), 6)
        buffer = scene.admission.buffer
        assert buffer.held == 6 * 2 * len(half)
        assert buffer.unpacking == LARGEST_AT_ONCE * 2 * len(half), "copies of those that are read, only"
        reading.may_go_on.set()
        for call in calls:
            await call.started.wait()
        assert (buffer.held, buffer.unpacking) == (0, 0)
        for call in calls:
            call.finish()
    assert reading.most == LARGEST_AT_ONCE


async def test_c1_packed_bodies_are_unpacked_and_read_in_one_turn() -> None:
    reading = Reading()
    packed = gzip.compress(b"x" * (4 * MIB))
    async with scenario(estimator=reading, max_body_bytes=5 * MIB) as scene:
        calls = [await scene.start(packed, headers=GZIP) for _ in range(8)]
        await until(lambda: reading.now == LARGEST_AT_ONCE)
        await settle()
        assert scene.admission.buffer.unpacking == LARGEST_AT_ONCE * 4 * MIB
        reading.may_go_on.set()
        for call in calls:
            await call.started.wait()
            call.finish()
        assert scene.admission.buffer.unpacking == 0


async def test_c1_what_is_unpacked_counts_against_max_buffered_bytes() -> None:
    reading = Reading()
    reading.may_go_on.set()
    packed = gzip.compress(b"x" * (4 * MIB))
    async with scenario(estimator=reading, max_buffered_bytes=3 * MIB) as scene:
        call = await scene.run(packed, headers=GZIP)
        assert call.status == 429
        assert "max_buffered_bytes=3.00 MiB" in call.problem()["detail"]
    assert reading.sizes == []


# C3: the line of those that wait to be read


async def test_c3_waiting_to_be_read_is_part_of_the_wait_and_has_its_limit() -> None:
    reading, piece = Reading(), b"x" * (MEDIUM_BYTES + 1)
    async with scenario(estimator=reading, timeout=0.05) as scene:
        calls = await waiting_to_be_read(scene, reading, (piece,), LARGEST_AT_ONCE)
        late = await scene.run(piece)
        assert late.status == 429
        assert late.problem()["reason"] == "queue_timeout"
        assert "timeout" in late.problem()["detail"]
        reading.may_go_on.set()
        for call in calls:
            call.finish()


async def test_c3_a_client_that_leaves_the_line_is_forgotten() -> None:
    reading, piece = Reading(), b"x" * (MEDIUM_BYTES + 1)
    async with scenario(estimator=reading) as scene:
        calls = await waiting_to_be_read(scene, reading, (piece,), LARGEST_AT_ONCE + 1)
        leaver = calls.pop()
        assert scene.admission.buffer.held == (LARGEST_AT_ONCE + 1) * len(piece)
        leaver.hang_up()
        await leaver.done.wait()
        assert (leaver.reached_app, leaver.sent, leaver.error) == (False, [], None)
        assert scene.admission.snapshot().counts["disconnected"] == 1
        assert scene.admission.buffer.held == LARGEST_AT_ONCE * len(piece)
        reading.may_go_on.set()
        for call in calls:
            call.finish()


async def test_c3_a_smaller_body_does_not_wait_behind_large_ones() -> None:
    reading, piece = Reading(), b"x" * (MEDIUM_BYTES + 1)
    small = b"x" * (LARGE_BYTES + 1)
    async with scenario(estimator=reading) as scene:
        calls = await waiting_to_be_read(scene, reading, (piece,), LARGEST_AT_ONCE + 3)
        calls.append(await scene.start(small))
        await until(lambda: reading.now == AT_ONCE)
        assert reading.sizes[-1] == len(small)
        reading.may_go_on.set()
        for call in calls:
            call.finish()


async def test_c3_a_few_packed_bytes_are_read_at_once_while_bombs_wait() -> None:
    reading = Reading()

    def estimator(info: RequestInfo) -> int:
        return 1 if len(info.body) < 1000 else reading(info)

    bomb, honest = gzip.compress(b"x" * (8 * MIB)), gzip.compress(b'{"messages": []}')
    async with scenario(estimator=estimator) as scene:
        calls = [await scene.start(bomb, headers=GZIP) for _ in range(6)]
        await until(lambda: reading.now == LARGEST_AT_ONCE)
        call = scene.call(honest, headers=GZIP)
        call.finish()
        await call.run()
        assert call.status == 200
        reading.may_go_on.set()
        for each in calls:
            each.finish()


async def test_c3_the_smallest_of_those_in_line_is_next() -> None:
    readers, order = large.Readers(), []
    for _ in range(AT_ONCE):
        await readers.enter(1, 60, None)

    async def read(size: int) -> None:
        await readers.enter(size, 60, None)
        order.append(size)
        readers.leave(size)

    async with anyio.create_task_group() as group:
        for size in (300, 100, 200):
            group.start_soon(read, size)
        await settle()
        readers.leave(1)
    assert order == [100, 200, 300]


async def test_c3_a_turn_that_comes_with_a_cancellation_goes_to_the_next() -> None:
    readers, order = large.Readers(), []
    for _ in range(AT_ONCE):
        await readers.enter(1, 60, None)

    async def read(size: int) -> None:
        await readers.enter(size, 60, None)
        order.append(size)
        readers.leave(size)

    async with anyio.create_task_group() as group:
        async with anyio.create_task_group() as cancelled:
            cancelled.start_soon(read, 1)
            await settle()
            group.start_soon(read, 2)
            await settle()
            readers.leave(1)
            cancelled.cancel_scope.cancel()
        await settle()
    assert order == [2]


# uploads: limits of time, and of one client's share


async def test_an_upload_without_a_byte_for_body_timeout_is_refused_with_408() -> None:
    async with scenario(body_timeout=0.02) as scene:
        call = await scene.run(messages=chunks(b"half", complete=False))
        assert call.status == 408
        assert call.problem()["reason"] == "body_timeout"
        assert "body_timeout=0.02 s" in call.problem()["detail"]
        assert scene.admission.snapshot().counts["body_timeout"] == 1
        assert scene.admission.buffer.held == 0


async def test_an_upload_of_single_bytes_has_a_limit_in_all() -> None:
    async with scenario(body_timeout=0.2) as scene:
        call = scene.call(messages=[])

        async def trickle() -> Message:
            await anyio.sleep(0.05)
            return {"type": "http.request", "body": b"x", "more_body": True}

        call.receive = trickle  # type: ignore[method-assign]
        with anyio.fail_after(20):
            await call.run()
        assert call.status == 408


@pytest.mark.parametrize("outside", [False, True], ids=["raw", "starlette"])
async def test_an_upload_that_the_app_reads_by_itself_has_the_same_limit(outside: bool) -> None:
    async def endpoint(request: StarletteRequest) -> PlainTextResponse:
        return PlainTextResponse(await request.body())

    async def raw(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)
        await answer(send)

    app: Any = Starlette(routes=[Route("/work", endpoint, methods=["POST"])]) if outside else raw
    async with scenario(app, body_timeout=0.02, estimator=StreamedCost()) as scene:
        call = await scene.run(messages=chunks(b"half", complete=False))
        assert (call.status, call.error) == (408, None)
        assert [event.outcome for event in scene.events if event.kind == "released"] == ["client"]


async def test_a_body_that_an_answering_app_does_not_read_has_no_limit_of_time() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        with anyio.move_on_after(0.1) as waited:
            await receive()
        assert waited.cancelled_caught
        await send({"type": "http.response.body", "body": b"done"})

    async with scenario(app, body_timeout=0.01, estimator=StreamedCost()) as scene:
        call = await scene.run(messages=[])
        assert (call.body, call.error) == (b"done", None)


async def test_one_client_address_cannot_hold_all_that_may_be_buffered() -> None:
    async with scenario(max_buffered_bytes=1000) as scene:
        holder = await scene.start(cost=100)
        first = await scene.start(b"x" * 700, cost=100, client=("192.0.2.1", 1))
        refused = await scene.run(b"x" * 100, cost=100, client=("192.0.2.1", 2))
        assert "from this client address" in refused.problem()["detail"]
        other = await scene.start(b"x" * 100, cost=100, client=("192.0.2.2", 1))
        assert scene.waiting == 2
        for call in (holder, first, other):
            call.finish()


# send: a client that takes nothing


@pytest.mark.parametrize("at", ["start", "chunk", "last"])
async def test_a_client_that_takes_nothing_ends_its_request_after_send_timeout(at: str) -> None:
    seen: list[BaseException] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"chunk", "more_body": True})
            await send({"type": "http.response.body", "body": b"last"})
        except TimeoutError as error:
            seen.append(error)
            raise

    async with scenario(app, send_timeout=0.02) as scene:
        call = scene.call()
        number = {"start": 0, "chunk": 1, "last": 2}[at]

        async def stall(message: Message) -> None:
            call.sent.append(message)
            if len(call.sent) > number:
                await anyio.sleep_forever()

        call.send = stall  # type: ignore[method-assign]
        await call.run()
        assert call.error is seen[0]
        assert "send_timeout=0.02 s" in str(call.error)
        assert scene.in_use == 0
        assert [event.outcome for event in scene.events if event.kind == "released"] == ["client"]


# H1, M4: what slips by


@pytest.mark.parametrize("method", ["post", "Post", "DELETE", "MADE-UP"])
async def test_h1_no_spelling_of_a_method_slips_by(method: str) -> None:
    async with scenario() as scene:
        call = await scene.run(cost=101, method=method)
        assert call.status == 413


@pytest.mark.parametrize("inside", [False, True])
async def test_h1_a_root_path_of_the_app_does_not_hide_its_routes(inside: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer FastAPI would have the server say it
        app = FastAPI(root_path="/proxy")

    @app.post("/v1/g")
    async def g() -> int:
        lease = current_lease()
        return lease.bytes if lease else -1

    settings: dict[str, Any] = {"capacity": 100, "estimator": 10, "routes": ["/v1/*"]}
    served: Any = app
    if inside:
        app.add_middleware(GPUAdmission, **settings)
    else:
        served = GPUAdmission(app, **settings)

    def ask() -> list[int]:
        client = TestClient(served)
        return [client.post(path).json() for path in ("/proxy/v1/g", "/v1/g")]

    assert await anyio.to_thread.run_sync(ask) == [10, 10]


@pytest.mark.parametrize("kind", ["raw", "starlette", "swallows"])
async def test_m4_a_chunked_upload_that_the_app_reads_by_itself_is_limited(kind: str) -> None:
    got = 0

    async def raw(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal got
        more = True
        while more:
            message = await receive()
            got += len(message["body"])
            more = message["more_body"]
        await answer(send)

    async def swallows(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await raw(scope, receive, send)
        except Exception:
            await send({"type": "http.response.start", "status": 500, "headers": []})

    async def endpoint(request: StarletteRequest) -> PlainTextResponse:
        nonlocal got
        async for piece in request.stream():
            got += len(piece)
        return PlainTextResponse("read")

    apps: dict[str, Any] = {
        "raw": raw,
        "swallows": swallows,
        "starlette": Starlette(routes=[Route("/work", endpoint, methods=["POST"])]),
    }
    async with scenario(apps[kind], max_body_bytes=1000, estimator=StreamedCost()) as scene:
        call = await scene.run(*[b"x" * 300] * 10)
        assert (call.status, call.error, got) == (413, None, 900)
        assert "max_body_bytes=1000 B" in call.problem()["detail"]
        assert scene.admission.snapshot().counts["body_too_large"] == 1


@pytest.mark.parametrize("door", ["decorator", "dependency"])
@pytest.mark.parametrize("reads", ["by fastapi", "form", "by itself"])
def test_m4_a_door_of_fastapi_limits_chunked_uploads(door: str, reads: str) -> None:
    admission = Admission(capacity=100, estimator=StreamedFixed(), max_body_bytes=1000)
    app = FastAPI()
    depends: dict[str, Any] = (
        {} if door == "decorator" else {"dependencies": [Depends(admission.dependency())]}
    )
    metered: Callable[[Any], Any] = admission.admit if door == "decorator" else lambda function: function

    async def by_fastapi(body: dict[str, str]) -> str:
        raise AssertionError("never called")

    async def form(file: UploadFile) -> str:
        raise AssertionError("never called")

    async def by_itself(request: Request) -> str:
        await request.body()
        raise AssertionError("never read")

    endpoint: Any = {"by fastapi": by_fastapi, "form": form, "by itself": by_itself}[reads]
    app.post("/", **depends)(metered(endpoint))
    with TestClient(app) as client:
        if reads == "form":
            response = client.post("/", files={"file": ("a", b"x" * 2000)})
        else:
            content = json.dumps({"a": "x" * 2000}).encode()
            pieces = (content[at : at + 500] for at in range(0, len(content), 500))
            response = client.post("/", content=pieces, headers={"content-type": "application/json"})
    assert response.status_code == 413
    assert response.json()["reason"] == "body_too_large"
    assert admission.snapshot().in_use == 0


class StreamedFixed:
    needs_body = False

    def __call__(self, info: RequestInfo) -> int:
        return 1


# H3: encodings that nobody knows


@pytest.mark.parametrize("header", [[], [(b"content-encoding", b"x")]], ids=["plain", "unknown"])
async def test_h3_an_unknown_encoding_wins_neither_a_price_nor_a_lane(header: list[Any]) -> None:
    lanes = [Lane("short", priority=1), Lane("long")]

    def tokens(info: RequestInfo) -> int:
        return info.workload.new_tokens

    async with scenario(
        estimator=tokens, fallback=10, capacity=10**6, lanes=lanes, lane=by_tokens(short=512)
    ) as scene:
        body = b'{"messages":[],"max_tokens":150000}'
        call = await scene.run(body, path="/v1/chat/completions", headers=header)
        assert call.lease is not None
        assert (call.lease.bytes, call.lease.lane) == (150000, "long")


@pytest.mark.parametrize(
    ("header", "times"),
    [("gzip, x", 1), ("x, gzip", 1), ("gzip,gzip", 1), ("gzip, gzip, gzip", 1), ("gzip,gzip,gzip,gzip", 1),
     ("gzip", 2)],
)  # fmt: skip
async def test_h3_encodings_that_an_app_may_read_otherwise_win_no_price(header: str, times: int) -> None:
    """Many apps unpack once where the header contains a word, whatever else is in it."""
    body = gzip.compress(b'{"messages":[],"max_tokens":150000}')
    headers = [(b"content-encoding", each.encode()) for each in [header] * times]
    async with scenario(
        estimator=lambda info: info.workload.new_tokens, fallback=10, capacity=10**6
    ) as scene:
        call = await scene.run(body, path="/v1/chat/completions", headers=headers)
        assert call.lease is not None
        assert call.lease.bytes == 150000


# H10: phantoms


async def test_h10_a_client_that_left_behind_a_long_upload_gives_its_place_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_body, "LOOK_SECONDS", 0.01)
    async with scenario(estimator=StreamedCost()) as scene:
        holder = await scene.start(cost=100)
        call = await scene.start(cost=100, messages=chunks(*[b"x" * 40_000] * 4, complete=False))
        assert scene.waiting == 1
        call.hang_up()
        with anyio.fail_after(20):
            await call.done.wait()
        assert (scene.waiting, call.reached_app) == (0, False)
        holder.finish()


async def test_h10_looking_further_stops_where_no_more_may_be_buffered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_body, "LOOK_SECONDS", 0.001)
    async with scenario(estimator=StreamedCost(), max_buffered_bytes=300_000) as scene:
        holder = await scene.start(cost=100)
        call = await scene.start(cost=100, messages=chunks(*[b"x" * 40_000] * 20))
        await anyio.sleep(0.1)
        assert scene.waiting == 1
        assert scene.admission.snapshot().buffered_bytes <= 225_000
        holder.finish()
        call.finish()
        await call.done.wait()
        assert call.read == b"x" * 40_000 * 20


# M3: free refusals


def test_m3_what_can_never_fit_does_not_make_other_sizes_small() -> None:
    ledger = Ledger([1000])
    for _ in range(127):
        ledger.request(Ticket(10**12), 0.0)
    assert ledger.asked == ()


# F1, F4


def test_f1_a_plain_generator_gives_its_bytes_back_when_its_client_leaves() -> None:
    admission, app = Admission(capacity=100, estimator=60), FastAPI()
    closed: list[int] = []

    @app.post("/work")
    @admission.admit
    def endpoint() -> Iterator[dict[str, int]]:
        try:
            for number in range(9):
                yield {"number": number}
        finally:
            closed.append(admission.in_use)

    async def main() -> None:
        messages: list[Message] = [{"type": "http.request", "body": b""}]

        async def receive() -> Message:
            return messages.pop() if messages else await anyio.sleep_forever()  # type: ignore[func-returns-value,return-value]

        async def send(message: Message) -> None:
            if message["type"] == "http.response.body":
                raise OSError("it has left")

        scope = {**Call(app).scope, "asgi": {"spec_version": "2.3"}}
        with pytest.raises(OSError, match="it has left"):
            await app(scope, receive, send)
        await settle()

    gc.disable()
    try:
        anyio.run(main)
        assert admission.in_use == 0
        assert closed == [60], "what it holds is freed before its bytes are"
    finally:
        gc.enable()


async def test_f4_an_async_estimator_hears_that_its_client_has_left() -> None:
    async def hangs(info: RequestInfo) -> int:
        await anyio.sleep_forever()
        return 1

    async with scenario(estimator=hangs) as scene:
        call = await scene.start(b"question")
        call.hang_up()
        await call.done.wait()
        assert (call.sent, call.error) == ([], None)
        assert scene.admission.snapshot().counts["disconnected"] == 1


async def test_f4_an_async_estimator_that_takes_too_long_has_failed(caplog: pytest.LogCaptureFixture) -> None:
    async def hangs(info: RequestInfo) -> int:
        await anyio.sleep_forever()
        return 1

    async with scenario(estimator=hangs, timeout=0.02, fallback=50) as scene:
        call = scene.call(b"question")
        call.finish()
        await call.run()
        assert call.lease is not None
        assert call.lease.bytes == 50
    assert "the estimator of * failed with TimeoutError: 50 B charged instead" in caplog.text


async def test_f4_an_async_estimator_hears_a_drain() -> None:
    async def hangs(info: RequestInfo) -> int:
        await anyio.sleep_forever()
        return 1

    async with scenario(estimator=hangs) as scene:
        call = await scene.start(b"question")
        scene.admission.drain()
        await call.done.wait()
        assert (call.status, call.problem()["reason"]) == (503, "draining")


async def test_f4_a_drain_is_heard_at_once_and_not_when_it_is_looked_for(monkeypatch: Any) -> None:
    monkeypatch.setattr("gpu_admission.admission.entrance._LOOK_SECONDS", 3600.0)
    asked = anyio.Event()

    async def hangs(info: RequestInfo) -> int:
        asked.set()
        await anyio.sleep_forever()
        return 1

    async with scenario(estimator=hangs) as scene:
        call = await scene.start(b"question")
        await asked.wait()
        await anyio.to_thread.run_sync(scene.admission.drain)  # as from a signal handler's thread
        await call.done.wait()
        assert (call.status, call.problem()["reason"]) == (503, "draining")


async def test_f4_a_guard_that_closes_is_heard_while_an_estimator_is_awaited(monkeypatch: Any) -> None:
    monkeypatch.setattr("gpu_admission.admission.entrance._LOOK_SECONDS", 0.01)
    asked = anyio.Event()

    async def hangs(info: RequestInfo) -> int:
        asked.set()
        await anyio.sleep_forever()
        return 1

    admission = Admission(capacity=100, estimator=hangs)
    call = Call(GPUAdmission(working, admission=admission), b"question")
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(call.run)
            await asked.wait()
            running = await admission.entrance.acquire(Estimate(1))
            running.finish(RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert (call.status, call.problem()["reason"]) == (503, "gpu_unavailable")


async def test_f4_what_runs_may_ask_an_async_estimator_while_the_server_drains() -> None:
    async def both(info: RequestInfo) -> int:
        await anyio.lowlevel.checkpoint()
        return len(info.body)

    async def outer(scope: Scope, receive: Receive, send: Send) -> None:
        scene.admission.drain()

        async def asked() -> Message:
            return {"type": "http.request", "body": b"in"}

        async def respond(scope: Scope, receive: Receive, send: Send) -> None:
            await answer(send, b"served")

        await GPUAdmission(respond, admission=scene.admission)(http_scope(path="/inner"), asked, send)

    async with scenario(app=outer, estimator=both) as scene:
        call = await scene.run(b"out")
        assert (call.status, call.body) == (200, b"served")


async def test_f4_a_request_inside_another_hears_that_its_client_has_left() -> None:
    asked = anyio.Event()

    async def estimate(info: RequestInfo) -> int:
        if info.path == "/inner":
            asked.set()
            await anyio.sleep_forever()
        return 1

    async def outer(scope: Scope, receive: Receive, send: Send) -> None:
        left: list[Message] = [{"type": "http.disconnect"}, {"type": "http.request", "body": b"in"}]

        async def receive_inside() -> Message:
            return left.pop() if left else {"type": "http.disconnect"}

        await GPUAdmission(working, admission=scene.admission)(
            http_scope(path="/inner"), receive_inside, send
        )
        await answer(send, b"outer")

    async with scenario(app=outer, estimator=estimate) as scene:
        call = await scene.run(b"out")
        assert asked.is_set()
        assert call.body == b"outer"


async def test_f4_an_async_estimator_may_open_task_groups_and_raise() -> None:
    async def groups(info: RequestInfo) -> int:
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.lowlevel.checkpoint)
        if info.body == b"fail":
            raise ZeroDivisionError
        return 7

    async with scenario(estimator=groups, fallback=50) as scene:
        for body, charged in ((b"question", 7), (b"fail", 50)):
            call = scene.call(body)
            call.finish()
            await call.run()
            assert call.lease is not None
            assert call.lease.bytes == charged


# N-33: the end of a response


@pytest.mark.parametrize(
    ("start", "last"),
    [
        ({}, [{"type": "http.response.pathsend", "path": "/x"}]),
        ({}, [{"type": "http.response.zerocopysend", "file": 1}]),
        (
            {"trailers": True},
            [
                {"type": "http.response.body", "body": b"done"},
                {"type": "http.response.trailers", "headers": [], "more_trailers": True},
                {"type": "http.response.trailers", "headers": []},
            ],
        ),
        (
            {},
            [{"type": "http.response.early_hint", "links": []}, {"type": "http.response.body", "body": b"x"}],
        ),
    ],
    ids=["path", "zero copy", "trailers", "hint"],
)
async def test_n33_a_response_ends_with_its_file_or_its_trailers(start: Any, last: list[Any]) -> None:
    held: list[int] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [], **start})
        for message in last:
            held.append(scene.in_use)
            await send(message)
        held.append(scene.in_use)

    async with scenario(app, hold="response") as scene:
        call = await scene.run(cost=60)
        assert [message["type"] for message in call.sent[1:]] == [message["type"] for message in last]
        assert held == [60] * len(last) + [0]
        assert [event.outcome for event in scene.events if event.kind == "released"] == ["ok"]


async def test_a_deadline_that_is_no_number_of_seconds_from_now_is_named_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with scenario() as scene:
        holder = await scene.start(cost=100)
        with caplog.at_level(logging.INFO, "gpu_admission"):
            call = await scene.start(cost=100, headers=[(b"x-request-deadline", b"1764500000000\n")])
        assert scene.waiting == 1
        assert "x-request-deadline is ignored: it must be seconds from now" in caplog.text
        assert "1764500000000" not in caplog.text
        holder.finish()
        call.finish()


async def test_a_receive_that_works_in_a_task_group_may_be_limited(anyio_backend_name: str) -> None:
    """The limit begins when the call waits inside of its own scopes: they must not end out of order."""
    async with scenario(body_timeout=30) as scene:
        call = scene.call(b"question")
        receive = call.receive

        async def grouped() -> Message:
            found: list[Message] = []

            async def one() -> None:
                await anyio.lowlevel.checkpoint()
                found.append(await receive())

            async with anyio.create_task_group() as group:
                group.start_soon(one)
            return found[0]

        call.receive = grouped  # type: ignore[method-assign]
        call.finish()
        await call.run()
        assert (call.status, call.read) == (200, b"question")


async def test_a_limited_receive_lets_a_cancellation_through(anyio_backend_name: str) -> None:
    async with scenario() as scene:
        call = await scene.start(messages=[])
        call.cancel()
        await call.done.wait()
        assert (call.cancelled, call.sent) == (True, [])


async def test_a_receive_that_is_a_future_is_awaited_as_it_is(anyio_backend_name: str) -> None:
    if anyio_backend_name == "trio":
        pytest.skip("there are no futures on trio")
    async with scenario() as scene:
        call = scene.call()
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        call.receive = lambda: future  # type: ignore[method-assign,assignment,return-value]
        scene.group.start_soon(call.run)
        await settle()
        future.set_result(chunks(b"")[0])
        call.finish()
        await call.done.wait()
        assert (call.status, call.read) == (200, b"")
