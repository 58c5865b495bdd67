"""Decorator and dependency: what they hold, how they run, what they leave alone: BL-45, BL-55, BL-56."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any

import anyio
import anyio.to_thread
import fastapi
import pytest
from fastapi import APIRouter, Body, Depends, FastAPI, Header, Query, Request, UploadFile
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request as StarletteRequest
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient

import gpu_admission.routes
from gpu_admission import Admission, GPUAdmission, Lease, RequestInfo, current_lease
from gpu_admission.types import ASGIApp, Event, Receive, Scope, Send
from tests.cases.harness import Call, StreamedCost, chunks, scenario, settle, until

pytestmark = pytest.mark.anyio


# BL-45: held until the last chunk


def streaming(kind: str, admission: Admission) -> ASGIApp:
    async def chunks_held() -> AsyncIterator[bytes]:
        for _ in range(5):
            await settle()
            lease = current_lease()
            yield b"%d," % (admission.snapshot().in_use if lease is not None else -1)

    if kind == "starlette":

        @admission.admit(estimator=StreamedCost())
        async def starlette_endpoint(request: StarletteRequest) -> Response:
            return StreamingResponse(chunks_held())

        return Starlette(routes=[Route("/work", starlette_endpoint, methods=["POST"])])
    app = FastAPI()
    if kind == "decorator":

        @app.post("/work")
        @admission.admit(estimator=StreamedCost())
        async def decorated() -> StreamingResponse:
            return StreamingResponse(chunks_held())

    if kind == "plain def":

        @app.post("/work")
        @admission.admit(estimator=StreamedCost())
        def decorated_def() -> StreamingResponse:
            return StreamingResponse(chunks_held())

    if kind == "dependency":

        @app.post("/work", dependencies=[Depends(admission.dependency(StreamedCost()))])
        async def depending() -> StreamingResponse:
            return StreamingResponse(chunks_held())

    return app


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


# BL-55: plain functions stay in their threads


class PlainCallable:
    def __call__(self) -> str:
        return where()


class AsyncCallable:
    async def __call__(self) -> str:
        return where()


class Methods:
    def plain(self) -> str:
        return where()

    async def asynchronous(self) -> str:
        return where()

    @staticmethod
    def static() -> str:
        return where()


def where() -> str:
    lease = current_lease()
    place = "thread" if threading.current_thread().name.startswith("AnyIO worker") else "loop"
    return f"{place} {None if lease is None else lease.bytes}"


def plain(times: int = 1) -> str:
    return where() * times


async def asynchronous(times: int = 1) -> str:
    return where() * times


KINDS: dict[str, tuple[Any, str]] = {
    "def": (plain, "thread 60"),
    "async def": (asynchronous, "loop 60"),
    "partial of a def": (functools.partial(plain, times=1), "thread 60"),
    "partial of an async def": (functools.partial(asynchronous, times=1), "loop 60"),
    "partial of a partial": (functools.partial(functools.partial(plain), times=1), "thread 60"),
    "callable object": (PlainCallable(), "thread 60"),
    "async callable object": (AsyncCallable(), "loop 60"),
    "method": (Methods().plain, "thread 60"),
    "async method": (Methods().asynchronous, "loop 60"),
    "static method": (Methods.static, "thread 60"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_bl_55_every_kind_of_endpoint_runs_where_it_ran_before(kind: str) -> None:
    endpoint, expected = KINDS[kind]
    admission = Admission(capacity=100, estimator=60)
    app = FastAPI()
    app.post("/plain")(endpoint)
    app.post("/admitted")(admission.admit(endpoint))
    with TestClient(app) as client:
        assert client.post("/admitted").json() == expected
        if kind != "async callable object":  # older FastAPI can't run it undecorated
            assert client.post("/plain").json() == expected.replace("60", "None")
    assert admission.snapshot().in_use == 0


def test_bl_55_generator_endpoints_stream_and_hold_their_bytes() -> None:
    admission = Admission(capacity=100, estimator=60)
    app = FastAPI()

    async def numbers() -> AsyncIterator[int]:
        for _ in range(3):
            yield admission.snapshot().in_use

    def plain_numbers() -> Iterator[int]:
        for _ in range(3):
            yield admission.snapshot().in_use

    if _yielded(numbers) is None:
        pytest.skip("this FastAPI does not stream generator endpoints")
    for endpoint in (numbers, plain_numbers):
        app.post(f"/{endpoint.__name__}")(admission.admit(endpoint))
        response = TestClient(app).post(f"/{endpoint.__name__}")
        assert response.text.split() == ["60", "60", "60"]
        assert admission.snapshot().in_use == 0


def _yielded(endpoint: Any) -> str | None:
    """What FastAPI makes of a generator endpoint by itself; ``None``: nothing."""
    app = FastAPI()
    try:
        app.post("/")(endpoint)
        text = TestClient(app).post("/").text
    except Exception:
        return None
    return text if len(text.split()) == 3 else None


@pytest.mark.parametrize("framework", ["starlette", "fastapi"])
async def test_bl_55_plain_routes_block_at_the_same_time_and_the_loop_goes_on(framework: str) -> None:
    may_end = threading.Event()
    running: set[int] = set()
    admission = Admission(capacity=100, estimator=1)

    def block() -> str:
        running.add(threading.get_ident())
        return str(may_end.wait(10))

    app: Any
    if framework == "starlette":

        @admission.admit
        def starlette_endpoint(request: StarletteRequest) -> PlainTextResponse:
            return PlainTextResponse(block())

        app = Starlette(routes=[Route("/work", starlette_endpoint, methods=["POST"])])
    else:
        app = FastAPI()
        app.post("/work")(admission.admit(block))
    calls = [Call(app) for _ in range(5)]
    async with anyio.create_task_group() as group:
        for call in calls:
            group.start_soon(call.run)
        # It is the loop that sees all five at once, each in a thread of its own.
        await until(lambda: len(running) == 5)
        assert admission.snapshot().running == 5
        may_end.set()
    assert [call.status for call in calls] == [200] * 5


# BL-56: the endpoint looks and behaves as before


class Prompt(BaseModel):
    text: str
    max_tokens: int = 16


def settings_of(x_tenant: Annotated[str, Header()] = "none") -> str:
    return x_tenant


async def no_request(prompt: Prompt) -> dict[str, int]:
    """The docstring is the description."""
    return {"length": len(prompt.text)}


async def with_everything(
    req: Request,
    item: int,
    prompt: Annotated[Prompt, Body(embed=True)],
    tenant: Annotated[str, Depends(settings_of)],
    q: Annotated[list[str] | None, Query()] = None,
    *,
    limit: int = 3,
) -> list[Any]:
    return [req.method, item, prompt.text, tenant, q, limit]


def plain_def(prompt: Prompt, q: str = "x") -> Prompt:
    return prompt


async def with_keywords(item: int, **rest: Any) -> list[Any]:
    return [item, sorted(rest)]


async def nothing_at_all() -> None:
    return None


BODY = {"text": "hi"}
ENDPOINTS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "no request": (no_request, "/x", {"json": BODY}),
    "everything": (
        with_everything,
        "/x/{item}",
        {"json": {"prompt": BODY}, "headers": {"x-tenant": "me"}, "params": {"q": ["a", "b"], "limit": 5}},
    ),
    "plain def": (plain_def, "/x", {"json": BODY, "params": {"q": "y"}}),
    "keywords": (with_keywords, "/x/{item}", {"params": {"rest": "1"}}),
    "nothing": (nothing_at_all, "/x", {}),
}


def app_with(endpoint: Any, path: str, router: bool = False) -> FastAPI:
    app = FastAPI()
    if not router:
        app.post(path)(endpoint)
        return app
    routes = APIRouter(prefix="/v1")
    routes.post(path)(endpoint)
    app.include_router(routes)
    return app


@pytest.mark.parametrize("router", [False, True], ids=["app", "router"])
@pytest.mark.parametrize("name", ENDPOINTS)
def test_bl_56_openapi_and_answers_are_those_of_the_undecorated_route(name: str, router: bool) -> None:
    endpoint, path, request = ENDPOINTS[name]
    events: list[Event] = []
    admission = Admission(capacity=100, estimator=60, observers=[events.append])
    bare = app_with(endpoint, path, router)
    admitted = app_with(admission.admit(endpoint), path, router)
    assert admitted.openapi() == bare.openapi()
    url = ("/v1" if router else "") + path.format(item=7)
    for sent in (request, {}, {"json": {"text": 5}}):
        expected, actual = TestClient(bare).post(url, **sent), TestClient(admitted).post(url, **sent)
        assert (actual.status_code, actual.json()) == (expected.status_code, expected.json())
    assert TestClient(bare).post(url, **request).status_code == 200
    assert "admitted" in {event.kind for event in events}
    assert admission.snapshot().in_use == 0


def test_bl_56_the_decorated_function_keeps_its_name_and_text() -> None:
    admission = Admission(capacity=100, estimator=60)
    decorated: Any = admission.admit(no_request)
    assert decorated.__name__ == "no_request"
    assert decorated.__doc__ == no_request.__doc__
    assert decorated.__wrapped__ is no_request
    assert decorated.__module__ == __name__


def test_bl_56_a_class_based_view_of_starlette_is_metered_by_its_methods() -> None:
    admission = Admission(capacity=100, estimator=60)

    class View(HTTPEndpoint):
        @admission.admit(estimator=30)
        async def post(self, request: StarletteRequest) -> PlainTextResponse:
            return PlainTextResponse(str(admission.snapshot().in_use))

        @admission.admit
        def put(self, request: StarletteRequest) -> PlainTextResponse:
            return PlainTextResponse(str(admission.snapshot().in_use))

    client = TestClient(Starlette(routes=[Route("/", View)]))
    assert client.post("/").text == "30"
    assert client.put("/").text == "60"


def test_bl_56_a_class_based_view_of_fastapi_is_metered_by_its_bound_methods() -> None:
    admission = Admission(capacity=100, estimator=60)

    class View:
        async def post(self, prompt: Prompt) -> int:
            return admission.snapshot().in_use

    app = FastAPI()
    app.post("/")(admission.admit(View().post))
    assert TestClient(app).post("/", json=BODY).json() == 60


def test_bl_56_the_wrong_order_fails_at_import_with_a_clear_text() -> None:
    admission = Admission(capacity=100, estimator=60)
    app, router = FastAPI(), APIRouter()
    for routes in (app, router):
        with pytest.raises(TypeError, match="stands above the route of 'endpoint'"):

            @admission.admit
            @routes.post("/x")
            async def endpoint(prompt: Prompt) -> None:
                """Never called."""

    async def starlette_endpoint(request: StarletteRequest) -> None:
        """Never called."""

    with pytest.raises(TypeError, match="below the route's decorator"):
        admission.admit(Route("/", starlette_endpoint))


def test_bl_56_a_function_that_is_an_unmetered_route_elsewhere_may_be_admitted_too() -> None:
    admission = Admission(capacity=100, estimator=60)
    app = FastAPI()
    app.post("/free")(nothing_at_all)
    app.post("/metered")(admission.admit(nothing_at_all))

    async def local() -> int:
        return admission.snapshot().in_use

    app.post("/free-too")(local)
    app.post("/metered-too")(admission.admit(local))
    client = TestClient(app)
    assert client.post("/free-too").json() == 0
    assert client.post("/metered-too").json() == 60


@pytest.mark.parametrize("thing", [Prompt, 7, "x", HTTPEndpoint], ids=repr)
def test_bl_56_what_is_no_endpoint_fails_at_import(thing: Any) -> None:
    with pytest.raises(TypeError, match=r"admit\(\) goes on an endpoint function"):
        Admission(capacity=100, estimator=60).admit(thing)


def test_bl_56_an_estimator_that_is_none_fails_at_import() -> None:
    admission = Admission(capacity=100, estimator=60)
    with pytest.raises(TypeError, match="estimator must be"):
        admission.admit(estimator=[1])(no_request)
    with pytest.raises(TypeError, match="estimator must be"):
        admission.dependency([1])


def test_bl_56_what_looks_like_an_endpoint_and_is_none_is_refused_with_its_remedy() -> None:
    admission = Admission(capacity=100, estimator=60)
    for app in (FastAPI(), Starlette(), Starlette().build_middleware_stack()):
        with pytest.raises(TypeError, match=r"put GPUAdmission\(...\) around an app|endpoint"):
            admission.admit(app)
    with pytest.raises(TypeError, match="below @staticmethod"):
        admission.admit(staticmethod(nothing_at_all))


def test_bl_56_the_wrong_order_is_found_whatever_way_the_route_keeps_its_facts() -> None:
    """A route whose attributes were asked for as a dict keeps them in one."""
    admission = Admission(capacity=100, estimator=60)
    routes: list[Any] = []

    def route(function: Any) -> Any:
        routes.append(Route("/", function))
        assert vars(routes[-1])["endpoint"] is function
        return function

    with pytest.raises(TypeError, match="stands above the route of 'endpoint'"):

        @admission.admit
        @route
        async def endpoint(request: StarletteRequest) -> None:
            """Never called."""


def test_bl_56_annotations_that_nobody_can_resolve_are_left_as_they_are() -> None:
    admission = Admission(capacity=100, estimator=60)

    async def endpoint(request: Unknown) -> Response:  # type: ignore[name-defined]  # noqa: F821
        return PlainTextResponse(str(admission.snapshot().in_use))

    app = Starlette(routes=[Route("/", admission.admit(endpoint), methods=["POST"])])
    assert TestClient(app).post("/").text == "60"


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


async def test_bl_56_called_without_a_request_it_says_so_instead_of_not_limiting() -> None:
    admission = Admission(capacity=100, estimator=60)
    with pytest.raises(TypeError, match="can't be metered"):
        await admission.admit(nothing_at_all)()

    async def numbers() -> AsyncIterator[int]:
        yield 1

    def plain_numbers() -> Iterator[int]:
        yield 1

    with pytest.raises(TypeError, match="can't be metered"):
        await anext(admission.admit(numbers)())
    with pytest.raises(TypeError, match="can't be metered"):
        next(admission.admit(plain_numbers)())


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
    assert gpu_admission.routes.Door(admission, None, "").estimator is None
