"""Decorator and dependency: what they hold, read and answer: BL-13, BL-45."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any

import anyio
import anyio.to_thread
import fastapi
import pytest
from fastapi import Body, Depends, FastAPI, Request, UploadFile
from starlette.applications import Starlette
from starlette.requests import Request as StarletteRequest
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from gpu_admission import Admission, GPUAdmission, Lease, RequestInfo, current_lease
from gpu_admission.routes.door import Door
from gpu_admission.types import ASGIApp, Receive, Scope, Send
from tests.cases.doors import Prompt, streaming
from tests.cases.harness import Call, StreamedCost, chunks, scenario, settle, until

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("spec_version", ["2.3", "2.4"])
@pytest.mark.parametrize("kind", ["starlette", "decorator", "plain def", "dependency"])
async def test_bl_45_a_streamed_route_holds_its_bytes_until_the_last_chunk(
    kind: str, spec_version: str
) -> None:
    async with scenario() as scene:
        asgi = {"version": "3.0", "spec_version": spec_version}
        call = await scene.run(cost=60, app=streaming(kind, scene.admission), asgi=asgi)
        assert call.body == b"60," * 5
        assert scene.in_use == 0


async def test_bl_45_a_stream_whose_client_leaves_gives_its_bytes_back() -> None:
    for kind in ("starlette", "decorator", "dependency"):
        async with scenario() as scene:
            call = scene.call(cost=60, app=streaming(kind, scene.admission))
            call.send_fails_at = 2
            await call.run()
            assert scene.in_use == 0


def test_bl_45_a_fastapi_that_ends_dependencies_too_early_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    admission = Admission(capacity=100, estimator=1)
    monkeypatch.setattr(fastapi, "__version__", "0.117.1")
    for door in (admission.dependency, _decorate(admission)):
        with pytest.raises(RuntimeError, match=r"FastAPI 0\.117\.1 .*0\.118"):
            door()


def _decorate(admission: Admission) -> Callable[[], Any]:
    async def endpoint(request: Request) -> None:
        """Never called."""

    return lambda: admission.admit(endpoint)


async def test_bl_13_a_starlette_route_behind_the_middleware_is_charged_once() -> None:
    async with scenario() as scene:
        app = GPUAdmission(streaming("starlette", scene.admission), admission=scene.admission)
        call = await scene.run(cost=60, app=app)
        assert call.body == b"60," * 5
        assert [event.kind for event in scene.events].count("admitted") == 1


async def test_two_admissions_may_meter_one_route() -> None:
    host = Admission(capacity=1000, estimator=1)
    async with scenario() as scene:
        app = FastAPI()

        async def both() -> list[int]:
            return [scene.in_use, host.snapshot().in_use]

        app.post("/work")(host.admit(estimator=500)(scene.admission.admit(estimator=60)(both)))
        call = await scene.run(app=app)
        assert call.body == b"[60,500]"
        assert host.snapshot().in_use == 0


@pytest.mark.parametrize("oom_status", [None, 507])
async def test_a_starlette_route_that_runs_out_of_memory_is_noticed_and_answered(
    oom_status: int | None,
) -> None:
    async with scenario(oom_status=oom_status) as scene:

        @scene.admission.admit(estimator=60)
        async def endpoint(request: StarletteRequest) -> Any:
            return _out_of_memory

        call = await scene.run(app=Starlette(routes=[Route("/work", endpoint, methods=["POST"])]))
        if oom_status is None:
            assert isinstance(call.error, RuntimeError)
            assert call.status == 500, "Starlette's own"
        else:
            assert (call.error, call.status) == (None, oom_status)
        assert [event.outcome for event in scene.events if event.kind == "released"] == ["oom"]


async def _out_of_memory(scope: Scope, receive: Receive, send: Send) -> None:
    raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")


async def test_a_starlette_route_that_answers_nothing_is_left_alone() -> None:
    async with scenario() as scene:

        @scene.admission.admit(estimator=60)
        async def endpoint(request: StarletteRequest) -> Any:
            return _silent

        call = scene.call(app=Starlette(routes=[Route("/work", endpoint, methods=["POST"])]))
        call.hang_up()
        await call.run()
        assert (call.sent, call.error) == ([], None)
        assert [event.outcome for event in scene.events if event.kind == "released"] == ["client"]


async def _silent(scope: Scope, receive: Receive, send: Send) -> None:
    """Its client has left."""


# what the doors read, and what the framework has read before them


def asked_size(info: RequestInfo) -> int:
    return int(info.json["text"])


async def test_a_body_that_fastapi_has_read_is_estimated_from_and_read_again_by_the_endpoint() -> None:
    async with scenario() as scene:
        app = FastAPI()

        @app.post("/work")
        @scene.admission.admit(estimator=asked_size)
        async def endpoint(prompt: Prompt, request: Request) -> list[Any]:
            return [prompt.text, (await request.body()).decode(), scene.in_use]

        call = await scene.run(
            b'{"text":', b' "30"}', app=app, headers=[(b"content-type", b"application/json")]
        )
        assert call.body == b'["30","{\\"text\\": \\"30\\"}",30]'


async def test_a_form_that_was_read_before_is_estimated_by_its_parts() -> None:
    admission = Admission(capacity=100, estimator=lambda info: sum(part.size for part in info.parts))
    app = FastAPI()

    @app.post("/")
    @admission.admit
    async def endpoint(file: UploadFile, note: Annotated[str, Body()] = "") -> int:
        return admission.snapshot().in_use

    files: Any = {"file": ("a.bin", b"x" * 30), "note": (None, "y" * 5)}
    response = await anyio.to_thread.run_sync(lambda: TestClient(app).post("/", files=files))
    assert response.json() == 35


async def streamed_size(request: Request) -> int:
    return sum([len(piece) async for piece in request.stream()])


@pytest.mark.parametrize("flow", [None, lambda info: info.path], ids=["no picker", "a picker that reads"])
@pytest.mark.parametrize("fallback", [None, 70])
def test_a_body_that_is_gone_is_never_read_as_a_small_one(fallback: int | None, flow: Any) -> None:
    admission = Admission(
        capacity=100, estimator=lambda info: 1 + len(info.body), fallback=fallback, flow=flow
    )
    app = FastAPI()

    @app.post("/form")
    @admission.admit
    async def form(file: UploadFile) -> int:
        return admission.snapshot().in_use

    @app.post("/stream")
    @admission.admit
    async def stream(size: Annotated[int, Depends(streamed_size)]) -> int:
        return admission.snapshot().in_use

    with TestClient(app) as client:
        answers = [
            client.post("/form", files={"file": ("a", b"x" * 99)}),
            client.post("/stream", content=b"x" * 99),
        ]
    for answer in answers:
        if fallback is None:
            assert answer.status_code == 400
            assert "before its lease" in answer.json()["detail"]
        else:
            assert answer.json() == fallback


@pytest.mark.parametrize("kind", ["starlette", "decorator", "dependency"])
async def test_a_client_that_leaves_the_queue_of_a_route_is_forgotten(kind: str) -> None:
    async with scenario() as scene:
        app = streaming(kind, scene.admission)
        holder = await scene.start(cost=100)
        call = await scene.start(cost=60, app=app)
        assert scene.waiting == 1
        call.hang_up()
        await call.done.wait()
        assert (call.sent, call.error) == ([], None)
        assert scene.admission.snapshot().counts["disconnected"] == 1
        holder.finish()


@pytest.mark.parametrize("kind", ["starlette", "decorator", "dependency"])
async def test_a_route_refuses_as_the_middleware_does(kind: str) -> None:
    async with scenario(on_reject="openai") as scene:
        call = await scene.run(cost=101, app=streaming(kind, scene.admission))
        assert call.status == 413
        assert call.headers["x-should-retry"] == "false"
        assert b'"code": "too_large"' in call.body


async def test_a_handler_of_the_app_for_refusals_comes_first() -> None:
    from gpu_admission import Rejected

    async with scenario() as scene:
        app = streaming("dependency", scene.admission)
        assert isinstance(app, FastAPI)

        @app.exception_handler(Rejected)
        async def teapot(request: Request, rejected: Rejected) -> Response:
            return PlainTextResponse(rejected.reason, 418)

        call = await scene.run(cost=101, app=app)
        assert (call.status, call.body) == (418, b"too_large")


@pytest.mark.parametrize("kind", ["starlette", "decorator", "dependency"])
@pytest.mark.parametrize("mode", ["off", "shadow"])
async def test_a_route_in_shadow_or_off_refuses_nothing(kind: str, mode: str) -> None:
    async with scenario(mode=mode, max_body_bytes=5) as scene:
        holder = await scene.start(cost=100)
        scene.admission.drain()
        call = await scene.run(b"0123456789", cost=500, app=streaming(kind, scene.admission))
        assert call.status == 200
        holder.finish()


@pytest.mark.parametrize("kind", ["starlette", "decorator", "dependency"])
async def test_a_route_that_is_off_reads_nothing_and_charges_nothing(kind: str) -> None:
    """A lease is given all the same: endpoints rely on it."""

    class Reads(StreamedCost):
        needs_body = True

        def __call__(self, info: RequestInfo) -> int:
            raise AssertionError("asked")

    async with scenario(mode="off", max_body_bytes=5) as scene:
        seen: list[Any] = []

        async def endpoint(request: StarletteRequest) -> Response:
            call: Call = request.scope["call"]
            lease = current_lease()
            assert lease is not None
            lease.resize(10**9)
            seen.append((call.receives, scene.in_use))
            return PlainTextResponse(await request.body())

        app = _with(kind, scene.admission, endpoint, Reads())
        call = await scene.run(b"not {json", app=app)
        assert (call.status, call.body, seen) == (200, b"not {json", [(0, 0)])
    assert {event.kind for event in scene.events} <= {"started"}


def _with(kind: str, admission: Admission, endpoint: Any, estimator: Any) -> ASGIApp:
    if kind == "starlette":
        route = Route("/work", admission.admit(estimator=estimator)(endpoint), methods=["POST"])
        return Starlette(routes=[route])
    app = FastAPI()
    if kind == "decorator":
        app.post("/work", response_model=None)(admission.admit(estimator=estimator)(endpoint))
    else:
        depends = Depends(admission.dependency(estimator))
        app.post("/work", response_model=None, dependencies=[depends])(endpoint)
    return app


async def test_a_response_made_by_an_admitted_route_can_still_be_changed() -> None:
    async with scenario() as scene:

        @scene.admission.admit(estimator=60)
        async def endpoint(request: StarletteRequest) -> PlainTextResponse:
            return PlainTextResponse("made")

        async def changed(request: StarletteRequest) -> Any:
            response = await endpoint(request)
            response.status_code = 201
            response.headers["x-more"] = "1"
            return response

        call = await scene.run(app=Starlette(routes=[Route("/work", changed, methods=["POST"])]))
        assert (call.status, call.headers["x-more"], call.body) == (201, "1", b"made")


async def test_a_response_that_is_thrown_away_gives_its_bytes_back() -> None:
    async with scenario() as scene:

        @scene.admission.admit(estimator=60)
        async def endpoint(request: StarletteRequest) -> PlainTextResponse:
            return PlainTextResponse("made")

        async def other(request: StarletteRequest) -> PlainTextResponse:
            await endpoint(request)
            return PlainTextResponse(str(scene.in_use))

        call = await scene.run(app=Starlette(routes=[Route("/work", other, methods=["POST"])]))
        assert call.body == b"0"


async def test_an_error_of_an_admitted_endpoint_comes_out_and_ends_its_lease() -> None:
    async with scenario() as scene:

        @scene.admission.admit(estimator=60)
        async def endpoint(request: StarletteRequest) -> None:
            raise ZeroDivisionError

        call = await scene.run(app=Starlette(routes=[Route("/work", endpoint, methods=["POST"])]))
        assert isinstance(call.error, ZeroDivisionError)
        assert [event.outcome for event in scene.events if event.kind == "released"] == ["error"]


async def test_chunks_that_came_while_a_route_waited_reach_its_endpoint() -> None:
    async with scenario() as scene:

        @scene.admission.admit(estimator=StreamedCost())
        async def endpoint(request: StarletteRequest) -> PlainTextResponse:
            return PlainTextResponse(await request.body())

        app = Starlette(routes=[Route("/work", endpoint, methods=["POST"])])
        holder = await scene.start(cost=100)
        call = await scene.start(cost=60, app=app, messages=chunks(b"a", complete=False))
        call.feed(*chunks(b"b", complete=False))
        await settle()
        holder.finish()
        await until(lambda: scene.in_use == 60)
        call.feed(*chunks(b"c"))
        await call.done.wait()
        assert call.body == b"abc"


def test_without_fastapi_a_starlette_route_is_decorated_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastapi", None)
    admission = Admission(capacity=100, estimator=60)

    async def bare(request: StarletteRequest) -> PlainTextResponse:
        return PlainTextResponse(str(admission.snapshot().in_use))

    endpoint: Any = admission.admit(bare)
    assert list(endpoint.__signature__.parameters) == ["request"]
    assert TestClient(Starlette(routes=[Route("/", endpoint, methods=["POST"])])).post("/").text == "60"


def test_the_lease_parameter_is_annotated_for_the_user() -> None:
    admission = Admission(capacity=100, estimator=60)
    app = FastAPI()
    depends = Depends(admission.dependency(25))

    @app.post("/")
    async def endpoint(lease: Lease = depends) -> list[Any]:
        return [lease.bytes, lease.device, lease.lane, lease.waited]

    assert TestClient(app).post("/").json() == [25, "device", "default", 0.0]
    assert Door(admission, None, "").estimator is None
