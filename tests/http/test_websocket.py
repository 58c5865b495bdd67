"""WebSockets under a budget: held from accept to close, refused at the handshake."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from gpu_admission import Admission, GPUAdmission, current_lease
from gpu_admission.http.websocket import serve
from gpu_admission.rules.metering import Metering
from gpu_admission.types import ASGIApp, Estimate, Message, Receive, Scope, Send
from tests.cases.harness import settle
from tests.test_openai_client import served

PATH = "/v1/realtime"


async def echo(socket: WebSocket) -> None:
    await socket.accept()
    lease = current_lease()
    try:
        while True:
            said = await socket.receive_text()
            await socket.send_text(f"{said} {0 if lease is None else lease.bytes}")
    except WebSocketDisconnect:
        pass


ROUTES = [WebSocketRoute(PATH, echo), WebSocketRoute("/free", echo)]


def gate(**settings: Any) -> GPUAdmission:
    app = Starlette(routes=ROUTES)
    estimator = {"/v1/realtime": 60, "/**": 1}
    defaults = {"capacity": 100, "estimator": estimator, "timeout": 0, "websockets": [PATH]}
    return GPUAdmission(app, **{**defaults, **settings})


def test_a_connection_holds_its_bytes_until_it_is_closed() -> None:
    app = gate()
    with served(app) as url:
        address = url.replace("http", "ws")
        with connect(f"{address}{PATH}") as one, connect(f"{address}/free") as other:
            one.send("a")
            assert one.recv() == "a 60"
            other.send("b")
            assert other.recv() == "b 0"
            assert app.admission.in_use == 60
    assert app.admission.in_use == 0


def test_a_refused_handshake_gets_the_answer_that_a_request_gets() -> None:
    app = gate()
    with served(app) as url:
        address = url.replace("http", "ws")
        with connect(f"{address}{PATH}"), pytest.raises(InvalidStatus) as refused:
            connect(f"{address}{PATH}")
        response = refused.value.response
        assert response.status_code == 429
        assert response.headers["content-type"] == "application/problem+json"
        assert 1 <= int(response.headers["retry-after"]) <= 60
        assert json.loads(response.body or b"")["reason"] == "queue_timeout"
    assert app.admission.snapshot().counts == {"admitted": 1, "queue_timeout": 1}


def test_a_connection_waits_its_turn_and_then_opens() -> None:
    app = gate(timeout=30)
    with served(app) as url, ThreadPoolExecutor(1) as pool:
        address = url.replace("http", "ws") + PATH
        with connect(address):
            second = pool.submit(say, address, "x")
            while app.admission.waiting == 0:
                assert not second.done()
        assert second.result(20) == "x 60"
    assert app.admission.in_use == 0


def say(address: str, text: str) -> str | bytes:
    with connect(address) as socket:
        socket.send(text)
        return socket.recv()


class NoExtensionServer:
    """A server that can't answer a handshake with a response."""

    def __init__(self, app: GPUAdmission) -> None:
        self.app = app
        self.sent: list[Message] = []
        self.hung_up = anyio.Event()
        self._begun = False

    async def receive(self) -> Message:
        if not self._begun:
            self._begun = True
            return {"type": "websocket.connect"}
        await self.hung_up.wait()
        return {"type": "websocket.disconnect", "code": 1001}

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    async def run(self) -> None:
        scope = {
            "type": "websocket", "path": PATH, "root_path": "", "query_string": b"", "headers": [],
            "subprotocols": [],
        }  # fmt: skip
        await self.app(scope, self.receive, self.send)


@pytest.mark.anyio
async def test_without_the_extension_the_close_code_says_try_again_later() -> None:
    app = gate(capacity=50)
    server = NoExtensionServer(app)
    await server.run()
    assert [message["type"] for message in server.sent] == ["websocket.accept", "websocket.close"]
    assert server.sent[-1]["code"] == 1013
    assert "capacity=50 B" in server.sent[-1]["reason"]
    assert app.admission.snapshot().counts == {"too_large": 1}


@pytest.mark.anyio
async def test_a_client_that_leaves_while_it_waits_gives_its_place_up() -> None:
    app = gate(timeout=30)
    held = await app.admission.entrance.acquire(Estimate(100))
    server = NoExtensionServer(app)
    async with anyio.create_task_group() as group:
        group.start_soon(server.run)
        await settle()
        assert app.admission.waiting == 1
        server.hung_up.set()
    assert server.sent == []
    assert app.admission.snapshot().counts == {"admitted": 1, "disconnected": 1}
    held.release()


@pytest.mark.anyio
async def test_what_came_while_it_waited_reaches_the_app() -> None:
    app = gate(timeout=30)
    held = await app.admission.entrance.acquire(Estimate(100))
    server = NoExtensionServer(app)
    async with anyio.create_task_group() as group:
        group.start_soon(server.run)
        await settle()
        held.release()
        await settle()
        assert [message["type"] for message in server.sent] == ["websocket.accept"]
        assert app.admission.in_use == 60
        server.hung_up.set()
    assert app.admission.in_use == 0


@pytest.mark.anyio
@pytest.mark.parametrize("fallback", [None, 30])
async def test_an_estimator_that_needs_a_body_has_none_here(fallback: int | None) -> None:
    app = gate(estimator=lambda info: info.workload.new_tokens, fallback=fallback, timeout=30)
    server = NoExtensionServer(app)
    async with anyio.create_task_group() as group:
        group.start_soon(server.run)
        await settle()
        assert app.admission.in_use == (fallback or 100)
        server.hung_up.set()


@pytest.mark.anyio
async def test_by_default_connections_pass_through() -> None:
    app = gate(websockets=(), capacity=50)
    server = NoExtensionServer(app)
    server.hung_up.set()
    await server.run()
    assert [message["type"] for message in server.sent] == ["websocket.accept"]


def test_a_budget_may_not_be_given_out_by_a_string() -> None:
    with pytest.raises(TypeError, match="websockets must be a list"):
        Admission(capacity=1, estimator=1, websockets="/x")


# a connection inside a request or another connection that holds a lease


async def accepts(scope: Scope, receive: Receive, send: Send) -> None:
    """Opens the connection, and closes it when its client leaves."""
    assert (await receive())["type"] == "websocket.connect"
    await send({"type": "websocket.accept"})
    assert (await receive())["type"] == "websocket.disconnect"
    await send({"type": "websocket.close"})


def nested(app: ASGIApp, inner: Any, **settings: Any) -> GPUAdmission:
    """A connection of 20 bytes, and in it another that asks ``inner`` of the same budget."""
    admission = Admission(capacity=100, estimator=20, websockets=[PATH], timeout=0, **settings)

    async def between(scope: Scope, receive: Receive, send: Send) -> None:
        rules = Metering(inner, websockets=[PATH])
        rule = rules.connection(scope)
        assert rule is not None
        await serve(app, admission, rule, scope, receive, send)

    return GPUAdmission(between, admission=admission)


@pytest.mark.anyio
async def test_a_connection_inside_another_holds_the_larger_of_both() -> None:
    app = nested(accepts, 70)
    server = NoExtensionServer(app)
    async with anyio.create_task_group() as group:
        group.start_soon(server.run)
        await settle()
        assert app.admission.in_use == 70
        server.hung_up.set()
    assert [message["type"] for message in server.sent] == ["websocket.accept", "websocket.close"]
    assert app.admission.in_use == 0


@pytest.mark.anyio
@pytest.mark.parametrize("inner", [101, lambda info: info.workload.new_tokens], ids=["too large", "no body"])
async def test_a_connection_inside_another_that_cannot_grow_is_refused(inner: Any) -> None:
    app = nested(accepts, inner, max_running=None)
    held = await app.admission.entrance.acquire(Estimate(30))
    server = NoExtensionServer(app)
    await server.run()
    assert [message["type"] for message in server.sent] == ["websocket.accept", "websocket.close"]
    assert server.sent[-1]["code"] == 1013
    assert app.admission.in_use == 30
    held.release()


@pytest.mark.anyio
@pytest.mark.parametrize("inner", [20, 70])
async def test_a_connection_that_fails_inside_another_gives_everything_back(inner: int) -> None:
    async def fails(scope: Scope, receive: Receive, send: Send) -> None:
        raise ZeroDivisionError

    app = nested(fails, inner)
    with pytest.raises(ZeroDivisionError):
        await NoExtensionServer(app).run()
    assert app.admission.in_use == 0


@pytest.mark.anyio
async def test_watching_only_a_connection_inside_another_is_never_refused() -> None:
    app = nested(accepts, 101, mode="shadow")
    server = NoExtensionServer(app)
    server.hung_up.set()
    await server.run()
    assert [message["type"] for message in server.sent] == ["websocket.accept", "websocket.close"]


@pytest.mark.anyio
async def test_a_connection_gives_its_bytes_back_when_it_is_closed_and_its_app_works_on() -> None:
    works_on = anyio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await accepts(scope, receive, send)
        await works_on.wait()

    gated = GPUAdmission(app, capacity=100, estimator=60, websockets=[PATH], hold="response")
    server = NoExtensionServer(gated)
    async with anyio.create_task_group() as group:
        group.start_soon(server.run)
        await settle()
        assert gated.admission.in_use == 60
        server.hung_up.set()
        await settle()
        assert gated.admission.in_use == 0
        works_on.set()


@pytest.mark.anyio
async def test_an_app_that_fails_under_a_connections_lease_gives_it_back() -> None:
    async def fails(scope: Scope, receive: Receive, send: Send) -> None:
        raise ZeroDivisionError

    app = GPUAdmission(fails, capacity=100, estimator=60, websockets=[PATH])
    with pytest.raises(ZeroDivisionError):
        await NoExtensionServer(app).run()
    assert app.admission.in_use == 0
