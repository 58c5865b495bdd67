"""Endpoints under the decorator run, look and are checked as before: BL-55, BL-56."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import anyio
import anyio.to_thread
import pytest
from fastapi import APIRouter, Body, Depends, FastAPI, Header, Query, Request
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request as StarletteRequest
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from gpu_admission import Admission, current_lease
from gpu_admission.estimators import Constant, Linear
from gpu_admission.types import Event
from tests.cases.doors import BODY, Prompt
from tests.cases.harness import Call, until

pytestmark = pytest.mark.anyio


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


@pytest.mark.parametrize(
    "thing", ["1GiB", 2**30, {"/x": "1GiB"}, Constant(1), Linear({"prompt_tokens": 1})], ids=repr
)
def test_what_is_charged_given_in_the_place_of_the_endpoint_is_refused_with_its_keyword(thing: Any) -> None:
    with pytest.raises(TypeError, match=re.escape(f"admit(estimator={thing!r})")):
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


@pytest.mark.parametrize("looked_at", [False, True])
def test_bl_56_the_wrong_order_is_found_whatever_way_the_route_keeps_its_facts(looked_at: bool) -> None:
    """A route whose attributes were asked for as a dict keeps them in one."""
    admission = Admission(capacity=100, estimator=60)
    routes: list[Any] = []

    def route(function: Any) -> Any:
        routes.append(Route("/", function))
        if looked_at:
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
