"""Status codes, headers, and what is limited at all: BL-32 to BL-38."""

from __future__ import annotations

import math
from typing import Any

import anyio
import pytest
from fastapi import Depends, FastAPI
from fastapi import Request as FastAPIRequest
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from gpu_admission import Admission, GPUAdmission, Guard
from gpu_admission.admission.refusals import retry_after
from gpu_admission.guards import FaultGuard, OutOfMemoryGuard
from gpu_admission.types import ASGIApp, Receive, Scope, Send
from tests.cards import Card, HandClock
from tests.cases.harness import Call, StreamedCost, answer, cost, read_body, saying, scenario, settle, working

pytestmark = pytest.mark.anyio

ORIGIN = (b"origin", b"https://app.example")
PREFLIGHT = [ORIGIN, (b"access-control-request-method", b"POST")]


# BL-32: CORS


def cors(app: ASGIApp) -> CORSMiddleware:
    return CORSMiddleware(
        app, allow_origins=["https://app.example"], allow_methods=["POST"], expose_headers=["Retry-After"]
    )


async def test_bl_32_a_preflight_neither_waits_nor_is_charged() -> None:
    for outside in (True, False):
        async with scenario(working if outside else cors(working), max_waiting=0) as scene:
            app = cors(scene.app) if outside else scene.app
            holder = await scene.start(cost=100)
            call = await scene.run(method="OPTIONS", headers=PREFLIGHT, app=app)
            assert call.status == 200
            assert call.headers["access-control-allow-origin"] == "https://app.example"
            assert scene.in_use == 100
            holder.finish()


async def test_bl_32_an_options_request_is_never_metered_even_if_named() -> None:
    async with scenario(methods=["OPTIONS", "POST"], max_waiting=0) as scene:
        holder = await scene.start(cost=100)
        call = await scene.run(method="OPTIONS")
        assert call.status == 200
        holder.finish()


async def test_bl_32_a_refusal_behind_cors_carries_its_headers() -> None:
    async with scenario(max_waiting=0) as scene:
        holder = await scene.start(cost=100)
        call = await scene.run(cost=50, headers=[ORIGIN], app=cors(scene.app))
        assert call.status == 429
        assert call.headers["access-control-allow-origin"] == "https://app.example"
        assert call.headers["access-control-expose-headers"] == "Retry-After"
        assert "retry-after" in call.headers
        holder.finish()


# BL-33: probes


async def test_bl_33_probes_are_answered_while_everything_is_full() -> None:
    async with scenario(max_waiting=1) as scene:
        holder = await scene.start(cost=100)
        waiter = await scene.start(cost=100)
        for path in ("/health", "/metrics", "/gpu"):
            call = await scene.run(method="GET", path=path)
            assert call.status == 200
        scene.admission.drain()
        assert (await scene.run(method="GET", path="/health")).status == 200
        holder.finish()
        waiter.finish()


@pytest.mark.parametrize(
    "place",
    [
        {"path": "/health"},
        {"path": "/health/"},
        {"path": "/proxy/health", "root_path": "/proxy"},
        {"path": "/health", "root_path": "/proxy"},
        {"path": "/health/live"},
    ],
    ids=str,
)
async def test_bl_33_what_is_excluded_is_answered_wherever_the_app_is_mounted(place: dict[str, str]) -> None:
    async with scenario(max_waiting=0, exclude=["/health", "/health/**"]) as scene:
        holder = await scene.start(cost=100)
        call = await scene.run(b"ping", **place)
        assert call.status == 200
        assert call.lease is None
        holder.finish()


async def test_bl_33_an_exclusion_does_not_open_other_paths() -> None:
    async with scenario(max_waiting=0, exclude=["/health"]) as scene:
        holder = await scene.start(cost=100)
        for path in ("/healthy", "/health/x", "/x/health", "/HEALTH"):
            assert (await scene.run(path=path)).status == 429
        holder.finish()


async def test_bl_33_the_pattern_matches_the_path_that_a_mounted_app_sees() -> None:
    inner = GPUAdmission(working, capacity=100, estimator=cost, routes=["/work"], max_waiting=0)
    outer = Starlette(routes=[Mount("/api", app=inner)])
    async with anyio.create_task_group() as group:
        holder = Call(outer, cost=100, path="/api/work")
        group.start_soon(holder.run)
        await settle()
        metered = Call(outer, path="/api/work")
        await metered.run()
        free = Call(outer, path="/api/other")
        free.finish()
        await free.run()
        assert (metered.status, free.status) == (429, 200)
        holder.finish()


@pytest.mark.parametrize("path", ["/work\n", "/work/", "/work//"])
async def test_bl_33_a_path_that_the_router_takes_for_a_metered_one_is_metered(path: str) -> None:
    async def endpoint(request: Request) -> PlainTextResponse:
        return PlainTextResponse("served")

    app = Starlette(routes=[Route("/work", endpoint, methods=["POST"])])
    async with scenario(app, routes=["/work"], max_waiting=0) as scene:
        holder = await scene.start(cost=100, app=GPUAdmission(working, admission=scene.admission))
        call = await scene.run(path=path)
        assert call.status == 429
        holder.finish()


# BL-34, BL-35: Retry-After


@pytest.mark.parametrize(
    "forecast", [0.2, 0, None, -5, math.inf, -math.inf, math.nan, 864_000, 59.9, 1e-300], ids=str
)
@pytest.mark.parametrize("timeout", [0.5, 0.0, 30.0, math.inf])
def test_bl_34_the_delay_is_whole_seconds_from_1_to_60(forecast: float | None, timeout: float) -> None:
    delays = {retry_after(forecast, timeout) for _ in range(100)}
    assert all(type(delay) is int and 1 <= delay <= 60 for delay in delays)


@pytest.mark.parametrize("case", ["queue_full", "queue_timeout", "deadline", "draining"])
@pytest.mark.parametrize("accept", [b"text/event-stream", b"application/json"])
@pytest.mark.parametrize("timeout", [0.01, 0.5, math.inf])
async def test_bl_34_each_429_and_503_says_when_to_come_back(
    case: str, accept: bytes, timeout: float
) -> None:
    if case == "queue_timeout":
        timeout = 0.01
    headers = [(b"accept", accept)]
    if case == "deadline":
        headers.append((b"x-request-deadline", b"0"))
    async with scenario(max_waiting=0 if case == "queue_full" else 5, timeout=timeout) as scene:
        holder = await scene.start(cost=100)
        if case == "draining":
            scene.admission.drain()
        call = await scene.run(cost=50, headers=headers)
        assert call.status == (503 if case == "draining" else 429)
        assert call.problem()["reason"] == case
        assert call.headers["retry-after"].isascii()
        assert call.headers["retry-after"].isdigit()
        assert 1 <= int(call.headers["retry-after"]) <= 60
        holder.finish()


async def test_bl_34_a_refusal_that_an_endpoint_lets_out_says_so_too() -> None:
    async with scenario() as scene:

        async def endpoint(request: Request) -> PlainTextResponse:
            async with scene.admission.lease(50, timeout=0):
                return PlainTextResponse("done")

        app = Starlette(routes=[Route("/work", endpoint, methods=["POST"])])
        holder = await scene.start(cost=100)
        call = await scene.run(app=app)
        assert call.status == 429
        assert int(call.headers["retry-after"]) >= 1
        assert call.headers["x-gpu-admission-reason"] == "queue_timeout"
        holder.finish()


async def test_bl_35_clients_that_are_refused_together_come_back_apart() -> None:
    async with scenario(max_waiting=0) as scene:
        holder = await scene.start(cost=100)
        delays = {int((await scene.run(cost=50)).headers["retry-after"]) for _ in range(200)}
        assert len(delays) >= 3
        holder.finish()


# BL-36: no status before the decision


async def test_bl_36_a_queued_stream_that_times_out_gets_a_real_429() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        call: Call = scope["call"]
        call.read = await read_body(receive)
        await call.may_finish.wait()
        await answer(send, b"data: 1\n\n", b"data: 2\n\n")

    async with scenario(app, timeout=0.05) as scene:
        holder = await scene.start(cost=100)
        call = await scene.start(cost=100, headers=[(b"accept", b"text/event-stream")])
        await call.done.wait()
        assert call.status == 429
        assert call.problem()["reason"] == "queue_timeout"
        assert "timeout=0.05" in call.problem()["detail"]
        holder.finish()


# BL-37: the length of the queue


def door(kind: str, admission: Admission) -> ASGIApp:
    """An app whose one route is metered in one of the ways that there are."""
    estimator = StreamedCost()
    if kind == "middleware":
        return GPUAdmission(working, admission=admission)
    if kind == "starlette":

        @admission.admit(estimator=estimator)
        async def starlette_endpoint(request: Request) -> PlainTextResponse:
            return await _work(request)

        return Starlette(routes=[Route("/work", starlette_endpoint, methods=["POST"])])
    app = FastAPI()
    if kind == "decorator":

        @app.post("/work")
        @admission.admit(estimator=estimator)
        async def decorated(request: FastAPIRequest) -> Any:
            return await _work(request)

    if kind == "dependency":

        @app.post("/work", dependencies=[Depends(admission.dependency(estimator))])
        async def depending(request: FastAPIRequest) -> Any:
            return await _work(request)

    if kind == "lease":

        @app.post("/work")
        async def leasing(request: FastAPIRequest) -> Any:
            async with admission.lease(int(request.headers["x-cost"])):
                return await _work(request)

    return app


async def _work(request: Request) -> PlainTextResponse:
    call: Call = request.scope["call"]
    call.started.set()
    await call.may_finish.wait()
    return PlainTextResponse("done")


@pytest.mark.parametrize("kind", ["middleware", "starlette", "decorator", "dependency", "lease"])
async def test_bl_37_one_waits_and_five_are_refused_at_once_at_every_door(kind: str) -> None:
    async with scenario(max_waiting=1) as scene:
        app = door(kind, scene.admission)
        holder = await scene.start(cost=100, app=app)
        assert scene.in_use == 100
        calls = [await scene.start(cost=50, app=app) for _ in range(6)]
        assert scene.waiting == 1
        assert [call.ended for call in calls] == [False, *[True] * 5]
        for call in calls[1:]:
            assert call.status == 429
            assert int(call.headers["retry-after"]) >= 1
            assert call.headers["x-gpu-admission-reason"] == "queue_full"
        holder.finish()
        calls[0].finish()
        await calls[0].done.wait()
        assert calls[0].status == 200


# BL-38: what the timeout is for


async def test_bl_38_the_timeout_ends_waiting_while_others_run_and_never_touches_work() -> None:
    async with scenario(timeout=0.05) as scene:
        holder = await scene.start(cost=60)
        running = await scene.start(cost=40)
        waiter = await scene.start(cost=50)
        await waiter.done.wait()
        assert waiter.status == 429
        assert not holder.ended
        assert not running.ended
        holder.finish()
        running.finish()
        await running.done.wait()
        assert (holder.status, running.status) == (200, 200)


@pytest.mark.parametrize(
    ("deadline", "reason"),
    [(b"0.01", "deadline"), (b"0", "deadline"), (b"1e9", "queue_timeout"), (b"-1", "queue_timeout")],
)
async def test_bl_38_a_client_can_shorten_its_own_wait_and_never_lengthen_it(
    deadline: bytes, reason: str
) -> None:
    async with scenario(timeout=0.05) as scene:
        holder = await scene.start(cost=100)
        call = await scene.start(cost=50, headers=[(b"x-request-deadline", deadline)])
        await call.done.wait()
        assert call.problem()["reason"] == reason
        holder.finish()


async def test_bl_38_a_timeout_of_zero_never_waits() -> None:
    async with scenario(timeout=0) as scene:
        holder = await scene.start(cost=100)
        call = await scene.run(cost=50)
        assert call.status == 429
        holder.finish()


# the breaker of a device, open: BL-22, BL-33, BL-34


async def fails(scope: Scope, receive: Receive, send: Send) -> None:
    """Probes are answered; work ends as the call says."""
    call: Call = scope["call"]
    if scope["method"] == "POST":
        raise RuntimeError(call.scope["test.error"])
    await answer(send, b"alive")


BREAKERS: dict[str, tuple[Guard, str]] = {
    "out of memory": (OutOfMemoryGuard(opens_after=1), "CUDA out of memory. Tried to allocate 2 GiB"),
    "a fault": (FaultGuard(), "CUDA error: device-side assert triggered"),
}


@pytest.mark.parametrize("name", BREAKERS)
async def test_bl_22_while_the_breaker_is_open_no_body_is_read_and_probes_are_answered(
    name: str, by_hand: HandClock
) -> None:
    guard, error = BREAKERS[name]
    admission = Admission(capacity=100, estimator=cost, devices=[Card(by_hand)], guards=[guard])
    app = GPUAdmission(fails, admission=admission)
    first = Call(app, b"question", **saying(error=error))
    await first.run()
    assert isinstance(first.error, RuntimeError)
    refused = Call(app, b"question", headers=[(b"content-length", b"8")])
    await refused.run()
    assert (refused.status, refused.receives) == (503, 0)
    assert refused.problem()["reason"] == "gpu_unavailable"
    if name == "a fault":
        assert refused.headers["x-should-retry"] == "false"
    else:
        assert 1 <= int(refused.headers["retry-after"]) <= 60
    probe = Call(app, method="GET", path="/health")
    await probe.run()
    assert (probe.status, probe.body) == (200, b"alive")
    assert admission.snapshot().in_use == 0
