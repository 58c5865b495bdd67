"""Startup and shutdown: measured after the app's own, or at the first request where there is none."""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from gpu_admission import Admission, GPUAdmission
from gpu_admission.devices import FixedDevice
from gpu_admission.types import DeviceReading, Message, Receive, Scope, Send
from tests.cards import Card, HandClock, look
from tests.cases.harness import Call, Scene, answer, http_scope, read_body, settle

pytestmark = pytest.mark.anyio
CAPACITIES = [(None, 63), ("85%", 49)]
"""Of a card of 100 with 30 resident, less the margin of a tenth."""


def model_app(card: Card, weights: int = 30) -> Starlette:
    """Its weights are on the card once it has started."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        card.resident += weights
        yield
        card.resident -= weights

    return Starlette(routes=[Route("/work", work, methods=["POST"])], lifespan=lifespan)


async def work(request: Request) -> Response:
    return JSONResponse({"body": len(await request.body())})


@pytest.mark.parametrize(("capacity", "measured"), CAPACITIES)
def test_the_capacity_is_measured_when_the_apps_own_startup_is_over(
    by_hand: HandClock, capacity: Any, measured: int
) -> None:
    card = Card(by_hand)
    app = GPUAdmission(model_app(card), capacity=capacity, devices=[card], estimator=10)
    with TestClient(app) as client:
        assert app.admission.snapshot().capacity == measured
        assert len(card.reads) == 1
        assert client.post("/work", content=b"x").json() == {"body": 1}
        assert len(card.reads) == 1


async def loaded(scope: Scope, receive: Receive, send: Send) -> None:
    """An app without a startup: its weights are there already."""
    call: Call = scope["call"]
    call.read = await read_body(receive)
    call.started.set()
    await answer(send, b"ok")


@pytest.mark.parametrize(("capacity", "measured"), CAPACITIES)
async def test_bl_17_without_a_startup_twenty_cold_requests_measure_once(
    by_hand: HandClock, capacity: Any, measured: int
) -> None:
    card = Card(by_hand, resident=30)
    async with anyio.create_task_group() as group:
        scene = Scene(loaded, group, {"capacity": capacity, "devices": [card]})
        calls = [scene.call(cost=2) for _ in range(20)]
        for call in calls:
            group.start_soon(call.run)
        await scene.check_end()
    assert [call.status for call in calls] == [200] * 20
    assert len(card.reads) == 1
    assert scene.admission.snapshot().capacity == measured


async def test_requests_that_come_while_it_is_measured_wait_in_the_event_loop(by_hand: HandClock) -> None:
    """Not in the threads that the app needs: of those one is taken, however many wait."""
    go = threading.Event()

    class Slow(Card):
        def read(self) -> DeviceReading:
            go.wait(30)
            return super().read()

    async with anyio.create_task_group() as group:
        scene = Scene(loaded, group, {"capacity": None, "devices": [Slow(by_hand)]})
        calls = [scene.call() for _ in range(60)]
        for call in calls:
            group.start_soon(call.run)
        await settle()
        limiter = anyio.to_thread.current_default_thread_limiter()
        assert limiter.borrowed_tokens == 0
        go.set()
        await scene.check_end()
    assert [call.status for call in calls] == [200] * 60


async def test_a_client_that_leaves_while_it_is_measured_keeps_nobody_from_it(by_hand: HandClock) -> None:
    go = threading.Event()

    class Slow(Card):
        def read(self) -> DeviceReading:
            go.wait(30)
            return super().read()

    async with anyio.create_task_group() as group:
        scene = Scene(loaded, group, {"capacity": None, "devices": [Slow(by_hand)]})
        first, second = await scene.start(), await scene.start()
        first.cancel()
        go.set()
        await scene.check_end()
    assert (first.cancelled, second.status) == (True, 200)


def test_what_can_not_be_measured_is_refused_until_it_can(by_hand: HandClock, caplog: Any) -> None:
    card = Card(by_hand, None)
    app = GPUAdmission(model_app(card), devices=[card], estimator=10)
    with TestClient(app) as client:
        refused = client.post("/work")
        assert refused.status_code == 503
        assert refused.json()["reason"] == refused.headers["x-gpu-admission-reason"] == "gpu_unavailable"
        assert "capacity can't be measured on card: the driver is gone" in refused.json()["detail"]
        assert 1 <= int(refused.headers["retry-after"]) <= 10
        card.total = 100
        look(app.admission)
        assert client.post("/work").status_code == 200
    assert "the driver is gone" in caplog.text


@pytest.mark.parametrize(
    ("total", "estimator", "text"),
    [
        (None, 10, "capacity can't be measured on card"),
        (100, 64, "even the smallest request needs 64 B, and no request may ever hold more than 63 B"),
    ],
)
async def test_strict_stops_the_startup(
    by_hand: HandClock, total: int | None, estimator: int, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    card = Card(by_hand, total)
    app = GPUAdmission(model_app(card), devices=[card], estimator=estimator, strict=True)
    sent: list[Message] = []
    with pytest.raises(ValueError, match="strict=True"):
        await run_lifespan(app, sent)
    (failed,) = sent
    assert failed["type"] == "lifespan.startup.failed"
    assert text in failed["message"]
    assert "does not start" in caplog.text


async def run_lifespan(app: Any, sent: list[Message] | None = None) -> list[Message]:
    """What a server hears that starts ``app`` and stops it, or gives up when it fails to start."""
    sent = [] if sent is None else sent
    coming = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

    async def receive() -> Message:
        if sent and sent[-1]["type"].endswith("failed"):
            stopped.cancel()
            await anyio.sleep_forever()
        return coming.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    with anyio.CancelScope() as stopped:
        await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)
    return sent


async def test_without_strict_it_starts_and_says_what_will_be_refused(
    by_hand: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    card = Card(by_hand)
    app = GPUAdmission(model_app(card), devices=[card], estimator=64, fallback=70)
    assert [message["type"] for message in await run_lifespan(app)] == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
    ]
    warned = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert warned == [
        "fallback: a body that can't be read needs 70 B, and no request may ever hold more than 63 B: "
        "it is refused (413)",
        "estimator: even the smallest request needs 64 B, and no request may ever hold more than 63 B: "
        "it is refused (413)",
    ]


def test_the_same_app_may_be_started_again_and_reads_again() -> None:
    app = GPUAdmission(model_app(Card(HandClock())), devices=[FixedDevice(100)], estimator=10)
    threads = []
    strays = set(threading.enumerate())
    for _ in range(2):
        with TestClient(app) as client:
            assert client.post("/work").status_code == 200
            started = set(threading.enumerate()) - strays
            (thread,) = (t for t in started if t.name == "gpu-admission-readings")
            threads.append(thread)
        thread.join(30)
        assert not thread.is_alive()
    assert threads[0] is not threads[1]


async def test_an_app_whose_own_startup_fails_is_not_measured(by_hand: HandClock) -> None:
    async def fails(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no weights"})

    card = Card(by_hand)
    sent = await run_lifespan(GPUAdmission(fails, devices=[card], estimator=1))
    assert sent == [{"type": "lifespan.startup.failed", "message": "no weights"}]
    assert card.reads == []


async def test_with_nothing_to_measure_the_servers_own_send_is_used(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Send] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(send)

    async def send(message: Message) -> None:
        raise AssertionError(message)

    async def receive() -> Message:
        raise AssertionError

    with caplog.at_level(logging.INFO, "gpu_admission"):
        await GPUAdmission(app, capacity=100, estimator=1)({"type": "lifespan"}, receive, send)
    assert seen == [send]
    assert "starts: capacity=100 B on device" in caplog.text


async def test_two_doors_of_one_budget_start_it_once(by_hand: HandClock) -> None:
    card = Card(by_hand)
    admission = Admission(devices=[card], estimator=10)
    inner = GPUAdmission(model_app(card), admission=admission)
    sent = await run_lifespan(GPUAdmission(inner, admission=admission))
    assert len(sent) == 2
    assert len(card.reads) == 1


async def test_off_passes_the_lifespan_on_and_reads_nothing(by_hand: HandClock) -> None:
    card = Card(by_hand)
    sent = await run_lifespan(GPUAdmission(model_app(card), devices=[card], estimator=1, mode="off"))
    assert len(sent) == 2
    assert card.reads == []


def test_the_scope_of_a_cold_request_stays_the_apps_own() -> None:
    """The scope is the one that the server made, measured or not."""
    scope = http_scope()
    seen: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)
        await answer(send)

    async def go() -> None:
        await Call(GPUAdmission(app, devices=[FixedDevice(100)], estimator=1)).app(scope, receive, send)

    async def receive() -> Message:
        return {"type": "http.request", "body": b""}

    async def send(message: Message) -> None:
        return None

    anyio.run(go)
    assert seen[0] is scope


def test_a_shared_budget_is_left_at_shutdown_and_joined_again_at_the_next_start(tmp_path: Path) -> None:
    folder = tmp_path / "gpu0"
    routes = [Route("/work", work, methods=["POST"])]
    app = GPUAdmission(Starlette(routes=routes), capacity=100, estimator=10, shared=folder)
    for _ in range(2):
        with TestClient(app) as client:
            assert client.post("/work", content=b"x").json() == {"body": 1}
            assert len(list(folder.glob("*.lock"))) == 1
        assert not list(folder.glob("*.lock"))
