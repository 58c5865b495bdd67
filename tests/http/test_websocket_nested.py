"""Connections and leases inside each other: the larger of both is held, and none waits while it holds."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocket, WebSocketDisconnect

from gpu_admission import Admission, GPUAdmission, Rejected, current_lease
from gpu_admission.serving import job
from gpu_admission.types import ASGIApp, Message, Receive, Scope, Send
from tests.cases.harness import settle

PATH = "/v1/realtime"


def budget(**settings: Any) -> Admission:
    defaults = {"capacity": 100, "estimator": {PATH: 60, "/**": 10}, "timeout": 1000, "websockets": [PATH]}
    return Admission(**{**defaults, **settings})


def behind(admission: Admission, endpoint: Any) -> GPUAdmission:
    return GPUAdmission(Starlette(routes=[WebSocketRoute(PATH, endpoint)]), admission=admission)


def test_a_block_inside_a_connection_grows_its_lease_and_gives_the_rest_back() -> None:
    admission, seen = budget(), list[tuple[int, int]]()

    async def endpoint(socket: WebSocket) -> None:
        await socket.accept()
        lease = current_lease()
        assert lease is not None
        for size in (30, 90):
            async with admission.lease(size) as inner:
                assert inner is lease
                seen.append((size, admission.in_use))
        await socket.send_text(str(admission.in_use))
        await socket.close()

    with TestClient(behind(admission, endpoint)).websocket_connect(PATH) as socket:
        assert socket.receive_text() == "60"
    assert seen == [(30, 60), (90, 90)]
    assert (admission.in_use, admission.snapshot().counts) == (0, {"admitted": 1})


def test_a_block_that_a_connection_has_no_room_for_is_refused_at_once_and_it_lives_on() -> None:
    admission = budget()

    async def endpoint(socket: WebSocket) -> None:
        await socket.accept()
        with pytest.raises(Rejected, match="capacity=100 B"):
            await admission.lease(101).__aenter__()
        with pytest.raises(RuntimeError, match=r"^job\(\.\.\.\) waits"):
            await job(admission, 10).__aenter__()
        await socket.send_text(str(admission.in_use))
        await socket.close()

    with TestClient(behind(admission, endpoint)).websocket_connect(PATH) as socket:
        assert socket.receive_text() == "60"
    assert admission.in_use == 0


def test_two_middlewares_of_one_budget_hold_a_connections_bytes_once() -> None:
    admission = budget()

    async def endpoint(socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_text(str(admission.in_use))
        await socket.close()

    app = GPUAdmission(behind(admission, endpoint), admission=admission)
    with TestClient(app).websocket_connect(PATH) as socket:
        assert socket.receive_text() == "60"
    assert (admission.in_use, admission.snapshot().counts) == (0, {"admitted": 1})


class Inner:
    """A WebSocket that is opened against ``app`` by the request that calls it."""

    def __init__(self, app: ASGIApp, *, extension: bool) -> None:
        self.app = app
        self.extension = extension
        self.sent: list[Message] = []
        self.connected = False
        self.left = anyio.Event()

    async def receive(self) -> Message:
        if not self.connected:
            self.connected = True
            return {"type": "websocket.connect"}
        await self.left.wait()
        return {"type": "websocket.disconnect", "code": 1001}

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    async def open(self) -> None:
        scope = {
            "type": "websocket", "path": PATH, "root_path": "", "query_string": b"", "headers": [],
            "subprotocols": [],
            "extensions": {"websocket.http.response": {}} if self.extension else {},
        }  # fmt: skip
        await self.app(scope, self.receive, self.send)

    @property
    def said(self) -> list[str]:
        return [message["type"] for message in self.sent]


async def until_it_leaves(scope: Scope, receive: Receive, send: Send) -> None:
    assert (await receive())["type"] == "websocket.connect"
    await send({"type": "websocket.accept"})
    assert (await receive())["type"] == "websocket.disconnect"


@pytest.mark.anyio
async def test_a_connection_inside_a_lease_is_a_part_of_it() -> None:
    admission = budget()
    inner = Inner(GPUAdmission(until_it_leaves, admission=admission), extension=True)
    async with admission.lease(20) as lease, anyio.create_task_group() as group:
        group.start_soon(inner.open)
        await settle()
        assert (inner.said, lease.bytes, admission.in_use) == (["websocket.accept"], 60, 60)
        inner.left.set()
        await settle()
        assert (lease.bytes, admission.in_use) == (20, 20)
    assert (admission.in_use, admission.snapshot().counts) == (0, {"admitted": 1})


@pytest.mark.anyio
@pytest.mark.parametrize("extension", [True, False])
async def test_a_connection_inside_a_lease_that_can_not_grow_is_refused_at_once(extension: bool) -> None:
    admission = budget()
    inner = Inner(GPUAdmission(until_it_leaves, admission=admission), extension=extension)
    release = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(_hold, admission, 70, release)
        await settle()
        async with admission.lease(20, own=True) as lease:
            with anyio.fail_after(20):
                await inner.open()
            assert (lease.bytes, admission.in_use) == (20, 90)
        release.set()
    if extension:
        assert inner.said == ["websocket.http.response.start", "websocket.http.response.body"]
        assert inner.sent[0]["status"] == 429
    else:
        assert inner.said == ["websocket.accept", "websocket.close"]
        assert inner.sent[1]["code"] == 1013
    counts = admission.snapshot().counts
    assert (admission.in_use, counts) == (0, {"admitted": 2, "queue_full": 1})


async def _hold(admission: Admission, size: int, release: anyio.Event) -> None:
    async with admission.lease(size, own=True):
        await release.wait()


@pytest.mark.anyio
async def test_a_connection_that_its_app_drops_gives_everything_back_to_the_lease_around_it() -> None:
    admission = budget()

    async def fails(scope: Scope, receive: Receive, send: Send) -> None:
        async with admission.lease(95):
            raise OSError("gone")

    inner = Inner(GPUAdmission(fails, admission=admission), extension=True)
    async with admission.lease(20) as lease:
        with pytest.raises(OSError, match="gone"):
            await inner.open()
        assert (lease.bytes, admission.in_use) == (20, 20)
    assert admission.in_use == 0


@pytest.mark.anyio
async def test_a_client_that_leaves_its_queue_frees_its_place_for_the_next_connection() -> None:
    admission = budget()
    app = GPUAdmission(until_it_leaves, admission=admission)
    first, second, third = (Inner(app, extension=True) for _ in range(3))
    async with anyio.create_task_group() as group:
        for connection in (first, second, third):
            group.start_soon(connection.open)
            await settle()
        assert (admission.in_use, admission.waiting) == (60, 2)
        second.left.set()
        await settle()
        assert (admission.waiting, second.sent) == (1, [])
        first.left.set()
        await settle()
        assert (third.said, admission.in_use) == (["websocket.accept"], 60)
        third.left.set()
    assert (admission.in_use, admission.snapshot().counts) == (0, {"admitted": 2, "disconnected": 1})


def test_the_test_client_of_starlette_sees_the_refusal_as_a_denial() -> None:
    admission = budget(capacity=50)

    async def endpoint(socket: WebSocket) -> None:
        raise AssertionError("it was refused")

    with pytest.raises((WebSocketDenialResponse, WebSocketDisconnect)) as refused:
        TestClient(behind(admission, endpoint)).websocket_connect(PATH).__enter__()
    assert getattr(refused.value, "status_code", None) == 413
