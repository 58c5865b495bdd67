"""What all doors have in common: the scope's key, one parameter each, and nothing left behind."""

from __future__ import annotations

import functools
import subprocess
import sys
import textwrap
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from fastapi import Depends, FastAPI, Form, HTTPException, Request, UploadFile, WebSocket
from fastapi.testclient import TestClient
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute

from gpu_admission import Admission, GPUAdmission, Lane, Lease, RequestInfo, current_lease
from gpu_admission.estimators import Linear
from gpu_admission.rules.classifiers import by_tokens
from gpu_admission.types import DeviceReading, Outcome
from tests.bench.asgi import call, scope_of

KEY = "gpu_admission.lease"
pytestmark = pytest.mark.anyio


class Held:
    """A guard that always says the same."""

    name = "mine"
    reason = "it is Monday"

    def __init__(self, ceiling: int) -> None:
        self._ceiling = ceiling

    def ceiling(
        self, readings: Sequence[DeviceReading], outcomes: Sequence[Outcome], now: float
    ) -> int | None:
        return self._ceiling


def test_every_door_puts_its_lease_into_the_scope_for_as_long_as_it_is_held() -> None:
    admission = Admission(capacity=100, estimator=10)
    app = FastAPI()

    @app.post("/decorated")
    @admission.admit
    async def decorated(request: Request) -> bool:
        return request.scope[KEY] is current_lease()

    lease_of_five = Depends(admission.dependency(5))

    @app.post("/depending")
    async def depending(request: Request, lease: Lease = lease_of_five) -> bool:
        return request.scope[KEY] is lease

    @admission.admit
    async def plain(request: Request) -> Response:
        return PlainTextResponse(str(request.scope[KEY] is current_lease()))

    client = TestClient(app)
    assert client.post("/decorated").json() is True
    assert client.post("/depending").json() is True
    starlette = TestClient(Starlette(routes=[Route("/", plain, methods=["POST"])]))
    assert starlette.post("/").text == "True"


async def test_an_inner_admission_gives_the_scope_back_as_it_found_it() -> None:
    seen: list[object] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope[KEY].admission)

    inner = GPUAdmission(app, capacity=100, estimator=1)

    async def between(scope: Any, receive: Any, send: Any) -> None:
        await inner(scope, receive, send)
        seen.append(scope[KEY].admission)

    outer = GPUAdmission(between, capacity=100, estimator=1)
    scope = scope_of()
    await call(lambda _, receive, send: outer(scope, receive, send), scope)
    assert seen == [inner.admission, outer.admission]
    assert KEY not in scope


def test_a_decorated_starlette_route_can_give_its_bytes_back_with_the_last_chunk() -> None:
    admission = Admission(capacity=100, estimator=10, hold="response")
    during: list[int] = []

    @admission.admit
    async def route(request: Any) -> Response:
        task = BackgroundTask(lambda: during.append(admission.snapshot().in_use))
        return PlainTextResponse("x", background=task)

    TestClient(Starlette(routes=[Route("/", route, methods=["POST"])])).post("/")
    assert during == [0]


def test_two_admissions_may_both_meter_one_endpoint() -> None:
    first, second = Admission(capacity=100, estimator=10), Admission(capacity=100, estimator=20)
    app = FastAPI()

    @app.post("/")
    @first.admit
    @second.admit
    async def endpoint() -> list[int]:
        return [first.snapshot().in_use, second.snapshot().in_use]

    assert TestClient(app).post("/").json() == [10, 20]
    assert first.snapshot().in_use == second.snapshot().in_use == 0


def test_a_handler_of_the_app_stays_its_own_after_a_door_has_refused() -> None:
    admission = Admission(capacity=100, estimator=200)
    app = FastAPI()

    @app.exception_handler(HTTPException)
    async def own(request: Request, error: HTTPException) -> Response:
        return PlainTextResponse("the app's own")

    @app.post("/door")
    @admission.admit
    async def door() -> None: ...

    @app.post("/inside")
    async def inside() -> None:
        async with admission.lease(200):
            pass

    app.add_exception_handler(429, own)  # type: ignore[arg-type]
    client = TestClient(app)
    before = client.post("/inside")
    refused = client.post("/door")
    assert refused.status_code == 413
    assert refused.headers["content-type"] == "application/problem+json"
    assert (client.post("/inside").status_code, client.post("/inside").text) == (
        before.status_code,
        before.text,
    )


def test_an_upload_that_fastapi_has_read_is_estimated_by_its_parts() -> None:
    admission = Admission(capacity="1TiB", estimator=Linear({"audio_seconds": 1000}, constant=1))
    app = FastAPI()

    @app.post("/v1/audio/transcriptions")
    @admission.admit
    async def transcribe(file: UploadFile) -> int:
        lease = current_lease()
        assert lease is not None
        return lease.bytes

    answer = TestClient(app).post("/v1/audio/transcriptions", files={"file": ("a.mp3", b"x" * 5000)})
    assert answer.status_code == 200
    assert answer.json() > 1000


@pytest.mark.parametrize("is_file", [True, False])
def test_a_large_form_that_fastapi_has_read_is_looked_at_off_the_loop_and_in_part(is_file: bool) -> None:
    threads, looked_at = [], []

    def estimator(info: RequestInfo) -> int:
        threads.append(threading.get_ident())
        looked_at.append([len(part.head) for part in info.parts])
        return sum(part.size for part in info.parts)

    admission = Admission(capacity="1TiB", estimator=estimator)
    app = FastAPI()

    @app.post("/form")
    @admission.admit
    async def form(first: str = Form("")) -> int:
        lease = current_lease()
        assert lease is not None
        threads.append(threading.get_ident())
        return lease.bytes

    value = "é" * 50_000
    field: Any = ("a.txt", value.encode()) if is_file else (None, value)
    answer = TestClient(app).post("/form", files=[("field", field)] * 200)
    assert answer.json() == 200 * 100_000
    reader, loop = threads
    assert reader != loop
    assert sum(looked_at[0]) < 9 * 2**20
    assert looked_at[0][0] == 65_536
    assert looked_at[0][-1] == 1024


def test_the_decorator_works_in_a_module_that_does_not_import_fastapi() -> None:
    code = """
        from gpu_admission import Admission
        admission = Admission(capacity=100, estimator=7)

        @admission.admit
        async def endpoint():
            return admission.snapshot().in_use

        from fastapi import FastAPI
        from fastapi.testclient import TestClient
        app = FastAPI()
        app.post("/")(endpoint)
        print(TestClient(app).post("/").json(), admission.snapshot().in_use)
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == ["7", "0"]


def test_a_partial_keeps_the_name_that_fastapi_gives_it() -> None:
    admission = Admission(capacity=100, estimator=1)

    def endpoint(times: int, word: str = "x") -> str:
        return word * times

    schemas = []
    bare = functools.partial(endpoint, word="y")
    for each in (bare, admission.admit(bare)):
        app = FastAPI()
        app.post("/")(each)
        schemas.append(app.openapi())
    assert schemas[0] == schemas[1]


@pytest.mark.parametrize(
    "target",
    [FastAPI(), Starlette(), staticmethod(print), classmethod(print)],
    ids=lambda target: type(target).__name__,
)
def test_what_is_no_endpoint_is_refused_at_once(target: Any) -> None:
    with pytest.raises(TypeError, match=r"admit\(\)"):
        Admission(capacity=100, estimator=1).admit(target)


async def test_a_guard_is_asked_before_the_first_request() -> None:
    admission = Admission(capacity=100, estimator=60, guards=[Held(0)])

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("nothing may start")

    sent = await call(GPUAdmission(app, admission=admission), scope_of())
    assert sent[0]["status"] == 503
    await admission.aclose()


async def test_a_lowered_ceiling_is_named_in_refusals_and_in_the_snapshot() -> None:
    admission = Admission(capacity=100, estimator=60, guards=[Held(50)], timeout=0)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("nothing may start")

    sent = await call(GPUAdmission(app, admission=admission), scope_of())
    assert sent[0]["status"] == 429
    assert b"guard 'mine' lets 50 B be held now: it is Monday" in sent[1]["body"]
    assert b'"needed_bytes": 60' in sent[1]["body"]
    assert admission.snapshot().closed_by == "mine"
    await admission.aclose()


async def test_a_lane_is_picked_by_the_body_although_the_estimator_reads_none() -> None:
    lanes = [Lane("short"), Lane("long")]
    picked: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        picked.append(scope[KEY].lane)

    gate = GPUAdmission(app, capacity=100, estimator=1, lanes=lanes, lane=by_tokens(short=50))
    await call(gate, scope_of())
    await call(gate, scope_of(), b'{"messages": [], "max_tokens": 5}')
    assert picked == ["long", "short"]


async def test_a_picker_must_be_a_plain_function() -> None:
    async def picker(info: object) -> str:
        return "short"

    with pytest.raises(TypeError, match="lane must be a plain function"):
        Admission(capacity=100, estimator=1, lane=picker)  # type: ignore[arg-type]


@pytest.mark.parametrize("headers", [[], [(b"content-encoding", b"unknown")]], ids=["plain", "packed"])
async def test_a_picker_that_fails_takes_the_last_lane_and_no_request_is_lost(
    headers: list[tuple[bytes, bytes]], caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope[KEY].lane)

    gate = GPUAdmission(
        app,
        capacity=100,
        estimator=1,
        lanes=[Lane("first"), Lane("second")],
        lane=lambda info: info.json["lane"],
        flow=lambda info: 1 / 0,
    )
    for body in (b"{}", b"no json"):
        await call(gate, scope_of(headers=headers), body)
    assert seen == ["second", "second"]
    assert "flow failed on *" in caplog.text


async def test_a_packed_body_that_the_estimator_needs_is_not_taken_for_nothing() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("never called")

    gate = GPUAdmission(app, capacity=100, estimator=lambda info: 1 + len(info.body))
    sent = await call(gate, scope_of(headers=[(b"content-encoding", b"unknown")]))
    assert sent[0]["status"] == 400


@pytest.mark.parametrize("door", ["admit", "dependency", "starlette"])
def test_a_websocket_that_asks_for_a_lease_by_a_door_hears_what_to_do(door: str) -> None:
    admission = Admission(capacity=10, estimator=1)
    app = FastAPI()

    async def endpoint(websocket: WebSocket) -> None:
        raise AssertionError

    if door == "starlette":
        app.router.routes.append(WebSocketRoute("/work", admission.admit(endpoint)))
    elif door == "admit":
        app.websocket("/work")(admission.admit(endpoint))
    else:
        app.websocket("/work", dependencies=[Depends(admission.dependency())])(endpoint)
    client = TestClient(app)
    with pytest.raises(TypeError, match="websockets="), client.websocket_connect("/work"):
        raise AssertionError
    assert admission.snapshot().in_use == 0
