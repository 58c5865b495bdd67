"""The web processes in front of the demo's engine: what they pass on, and what starts and ends them."""

from __future__ import annotations

import httpx
import msgspec
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gpu_admission.demo.process import ServerError
from gpu_admission.demo.protect import Bytes, Slots, Unprotected
from gpu_admission.demo.trace import PATH, WORKER, Ask
from gpu_admission.demo.workers import Settings, passing_on, serve

# The workers are asyncio's, as uvicorn is.
pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def refusing(request: Request) -> Response:
    return JSONResponse({"asked": await request.json()}, 500)


def nothing() -> None:
    pass


async def test_what_the_engine_says_is_passed_on_with_the_workers_name() -> None:
    engine = Starlette(routes=[Route(PATH, refusing, methods=["POST"])])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(engine), base_url="http://engine") as behind:
        app = passing_on(behind, nothing)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://demo") as http:
            answer = await http.post(PATH, json=Ask(5, 3).body)
    assert answer.status_code == 500
    assert answer.json() == {"asked": Ask(5, 3).body}
    assert int(answer.headers[WORKER]) > 0


def test_two_real_workers_answer_on_one_port_and_end_with_their_parent() -> None:
    bytes_of_all = Bytes(100, {"new_tokens": 50.0}, 0)
    with serve(Settings(count=2, engine=1, protection=bytes_of_all)) as port:
        answer = httpx.post(f"http://127.0.0.1:{port}{PATH}", json=Ask(1, 3).body)
        assert (answer.status_code, answer.headers["x-gpu-admission-reason"]) == (413, "too_large")
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/")


def test_workers_that_can_not_start_are_an_error() -> None:
    nowhere = Bytes(100, {}, 1, shared="no absolute path")  # what they say of it is on stderr
    with (
        pytest.raises(ServerError, match="must be an absolute path"),
        serve(Settings(count=2, engine=1, protection=nowhere)),
    ):
        raise AssertionError


@pytest.mark.parametrize("protection", [Unprotected(), Slots(2), Bytes(1, {}, 2, shared="/dev/shm/x")])
def test_settings_travel_whole(protection: Unprotected | Slots | Bytes) -> None:
    settings = Settings(count=3, engine=8000, protection=protection)
    assert msgspec.json.decode(msgspec.json.encode(settings), type=Settings) == settings
