"""One request, one charge: nested calls, doors on doors, requests of one connection: BL-13, BL-49."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
import anyio.lowlevel
import anyio.to_thread
import httpx
import pytest
from fastapi import BackgroundTasks, Depends, FastAPI, Request
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request as StarletteRequest
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from gpu_admission import Admission, GPUAdmission, current_lease
from gpu_admission.types import ASGIApp, Message, Receive, Scope, Send
from tests.cases.harness import Call, StreamedCost, answer, read_body, scenario, settle, working

pytestmark = pytest.mark.anyio


# BL-13: several doors on one route


def all_doors(admission: Admission) -> FastAPI:
    app = FastAPI()

    @app.post("/work", dependencies=[Depends(admission.dependency(StreamedCost()))])
    @admission.admit(estimator=StreamedCost())
    async def route(request: Request) -> Response:
        async with admission.lease(100):
            call: Call = request.scope["call"]
            call.lease = current_lease()
            call.started.set()
            await call.may_finish.wait()
            return PlainTextResponse("busy", 503, {"Retry-After": "7"})

    return app


async def test_bl_13_middleware_decorator_dependency_and_lease_charge_once() -> None:
    async with scenario() as scene:
        app = GPUAdmission(all_doors(scene.admission), admission=scene.admission)
        call = await scene.start(cost=60, app=app)
        assert call.started.is_set()
        assert scene.in_use == 100, "the larger of both: the block in the route asks more"
        kinds = [event.kind for event in scene.events if event.kind != "started"]
        assert kinds == ["admitted", "resized"], "one charge for all"
        call.finish()
        await call.done.wait()
        assert call.headers["retry-after"] == "7"
        assert [event.bytes for event in scene.events[1:]] == [60, 100, 60, 60], "and it shrinks back"


@pytest.mark.parametrize("outer", ["middleware", "routes only"])
async def test_bl_13_a_refusal_is_told_once(outer: str) -> None:
    async with scenario(max_waiting=0) as scene:
        app: ASGIApp = all_doors(scene.admission)
        if outer == "middleware":
            app = GPUAdmission(app, admission=scene.admission)
        holder = await scene.start(cost=60)
        call = await scene.run(cost=60, app=app)
        assert call.status == 429
        assert int(call.headers["retry-after"]) >= 1
        assert scene.admission.snapshot().counts["queue_full"] == 1
        holder.finish()


# BL-49: a request inside a request

Nest = Callable[[ASGIApp], Awaitable[list[int]]]


async def directly(app: ASGIApp) -> list[int]:
    call = Call(app, path="/inner", cost=60)
    await call.run()
    return [call.status]


async def by_httpx(app: ASGIApp) -> list[int]:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://self") as client:
        return [(await client.post("/inner", headers={"x-cost": "60"})).status_code]


async def in_child_tasks(app: ASGIApp) -> list[int]:
    statuses: list[int] = []

    async def one() -> None:
        statuses.extend(await directly(app))

    async with anyio.create_task_group() as group:
        group.start_soon(one)
        group.start_soon(one)
    return statuses


@pytest.mark.parametrize("nest", [directly, by_httpx, in_child_tasks], ids=lambda nest: nest.__name__)
@pytest.mark.parametrize("outer_calls", [1, 2])
async def test_bl_49_a_request_that_calls_its_own_service_never_waits_for_itself(
    nest: Nest, outer_calls: int
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)
        if scope["path"] == "/outer":
            assert await nest(scene.app) == [200] * (2 if nest is in_child_tasks else 1)
        await answer(send)

    async with scenario(app) as scene:
        calls = [scene.call(path="/outer", cost=60) for _ in range(outer_calls)]
        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                for call in calls:
                    group.start_soon(call.run)
        assert [(call.status, call.error) for call in calls] == [(200, None)] * outer_calls
        assert [event.kind for event in scene.events].count("admitted") == outer_calls


async def test_bl_49_nested_routes_of_fastapi_reuse_the_lease() -> None:
    async with scenario() as scene:
        app = FastAPI()

        @app.post("/outer")
        @scene.admission.admit(estimator=60)
        async def outer() -> list[int]:
            return [*await directly(app), *await in_child_tasks(app), *await by_httpx(app)]

        @app.post("/inner", dependencies=[Depends(scene.admission.dependency(60))])
        async def inner() -> int:
            return scene.in_use

        with anyio.fail_after(10):
            call = await scene.run(path="/outer", app=app)
        assert call.body == b"[200,200,200,200]"


async def test_bl_49_a_request_of_another_client_is_not_nested_whatever_it_sends() -> None:
    async with scenario() as scene:
        holder = await scene.start(cost=60)
        names = (b"gpu_admission.lease", b"x-gpu-admission-lease", b"x-gpu-admission-nested")
        call = await scene.start(cost=60, headers=[(name, b"1") for name in names])
        assert scene.waiting == 1
        assert not call.reached_app
        holder.finish()
        call.finish()


async def test_bl_49_work_that_outlives_its_request_is_not_nested_in_it() -> None:
    async with scenario() as scene:
        may_call = anyio.Event()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            scene.group.start_soon(later)
            await working(scope, receive, send)

        async def later() -> None:
            await may_call.wait()
            assert current_lease() is None
            await call.run()

        first = await scene.run(cost=60, app=GPUAdmission(app, admission=scene.admission))
        assert first.status == 200
        call = scene.call(cost=60)
        holder = await scene.start(cost=60)
        may_call.set()
        await settle()
        assert scene.waiting == 1
        holder.finish()
        call.finish()


# the same kind: servers start the next request of a connection in the context of the last one


def _staying(admission: Admission, door: str) -> ASGIApp:
    """An app that works on in the background after its answer was sent."""
    if door == "middleware":
        return GPUAdmission(_answers_then_works, admission=admission)
    if door == "starlette":

        @admission.admit(estimator=StreamedCost())
        async def starlette_endpoint(request: StarletteRequest) -> Response:
            return PlainTextResponse("ok", background=BackgroundTask(_work, request.scope["call"]))

        return Starlette(routes=[Route("/work", starlette_endpoint, methods=["POST"])])
    app = FastAPI()
    if door == "decorator":

        @app.post("/work")
        @admission.admit(estimator=StreamedCost())
        async def decorated(request: Request, background: BackgroundTasks) -> str:
            background.add_task(_work, request.scope["call"])
            return "ok"

    if door == "dependency":

        @app.post("/work", dependencies=[Depends(admission.dependency(StreamedCost()))])
        async def depending(request: Request) -> Response:
            async def stream() -> AsyncIterator[bytes]:
                yield b"ok"

            return StreamingResponse(stream(), background=BackgroundTask(_work, request.scope["call"]))

    return app


async def _answers_then_works(scope: Scope, receive: Receive, send: Send) -> None:
    await read_body(receive)
    await answer(send, b"ok")
    await _work(scope["call"])


async def _work(call: Call) -> None:
    call.started.set()
    await call.may_finish.wait()


@pytest.mark.parametrize("door", ["middleware", "starlette", "decorator", "dependency"])
async def test_bl_49_the_next_request_of_a_connection_is_not_nested_in_the_last(door: str) -> None:
    """uvicorn starts a pipelined request inside the ``send`` that ends the answer before it."""
    async with scenario() as scene:
        app = _staying(scene.admission, door)
        first = scene.call(b"question", cost=60, app=app)
        next_one = scene.call(b"question", cost=60, app=app)
        send = first.send

        async def send_and_go_on(message: Message) -> None:
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                scene.group.start_soon(next_one.run)

        first.send = send_and_go_on  # type: ignore[method-assign]
        scene.group.start_soon(first.run)
        await first.started.wait()
        await settle()
        assert (scene.in_use, scene.waiting) == (60, 1)
        assert not next_one.started.is_set()
        first.finish()
        await next_one.started.wait()
        assert scene.in_use == 60
        next_one.finish()


async def test_bl_49_a_request_that_the_server_starts_while_it_receives_is_not_nested() -> None:
    """asyncio's transports read on in the context in which ``receive`` has resumed them."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)
        scope["call"].started.set()
        await receive()
        await answer(send)

    async with scenario(app) as scene:
        first = scene.call(b"question", cost=60)
        next_one = scene.call(b"question", cost=60)
        receive = first.receive

        async def receive_and_go_on() -> Message:
            if first.started.is_set():
                scene.group.start_soon(next_one.run)
            return await receive()

        first.receive = receive_and_go_on  # type: ignore[method-assign]
        scene.group.start_soon(first.run)
        await settle()
        assert (scene.in_use, scene.waiting) == (60, 1)
        first.hang_up()
        next_one.hang_up()
