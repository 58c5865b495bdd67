"""The clients of the demo: what they send, and what they make of the answers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from gpu_admission import GPUAdmission
from gpu_admission.demo.load import GRACE, Answer, Sample, connect, replay, send
from gpu_admission.demo.trace import PATH, WORKER, Ask
from gpu_admission.estimators import Constant

# The clients are asyncio's: these run on asyncio alone.
pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Site:
    """A server whose answer depends on ``max_tokens`` alone."""

    def __init__(self) -> None:
        self.running = self.most = 0
        self.prompts: list[str] = []
        self.app = Starlette(
            routes=[Route(PATH, self.complete, methods=["POST"]), Route("/stats", self.stats)]
        )

    async def complete(self, request: Request) -> Response:
        asked = await request.json()
        self.running += 1
        self.most = max(self.most, self.running)
        self.prompts.append(asked["prompt"])
        await asyncio.sleep(0)
        self.running -= 1
        return await ANSWERS[asked["max_tokens"]]()

    async def stats(self, request: Request) -> Response:
        assert float(request.query_params["since"]) > 0
        return JSONResponse([[1.0, 100, 0.5]])


async def fine() -> Response:
    return JSONResponse({})


async def out_of_memory() -> Response:
    return JSONResponse({"error": {"code": "out_of_memory", "message": "no room"}}, 500)


async def broken() -> Response:
    return PlainTextResponse("oh", 500)


async def odd() -> Response:
    return JSONResponse({"error": "a text"}, 500)


async def never() -> Response:
    await asyncio.Event().wait()
    raise AssertionError


ANSWERS = dict(enumerate([fine, out_of_memory, broken, odd, never]))


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.fixture
async def http(site: Site) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(site.app), base_url="http://demo") as client:
        yield client


@pytest.mark.parametrize(
    ("new_tokens", "outcome", "detail"),
    [
        (0, "ok", ""),
        (1, "out_of_memory", "no room"),
        (2, "failed", "500 oh"),
        (3, "failed", '500 {"error":"a text"}'),
    ],
)
async def test_each_answer_has_its_outcome(
    http: httpx.AsyncClient, new_tokens: int, outcome: str, detail: str
) -> None:
    answer = await send(http, Ask(3, new_tokens), deadline=float("inf"))
    assert (answer.outcome, answer.detail) == (outcome, detail)
    assert answer.ended >= answer.sent
    assert answer.seconds == answer.ended - answer.sent


async def test_a_refusal_of_the_budget_is_told_from_a_failure(site: Site) -> None:
    door = GPUAdmission(site.app, capacity=1, estimator=Constant(2))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(door), base_url="http://demo") as http:
        answer = await send(http, Ask(3, 0), deadline=float("inf"))
    assert (answer.outcome, answer.detail) == ("refused", "too_large")


async def test_what_is_not_answered_by_the_deadline_is_unfinished(http: httpx.AsyncClient) -> None:
    assert (await send(http, Ask(3, 4), deadline=0.0)).outcome == "unfinished"


async def test_a_server_that_is_gone_is_a_failure() -> None:
    async def gone(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    async with httpx.AsyncClient(transport=httpx.MockTransport(gone), base_url="http://demo") as http:
        answer = await send(http, Ask(3, 0), deadline=float("inf"))
    assert (answer.outcome, answer.detail) == ("failed", "ConnectError")


async def test_a_replay_sends_everything_from_so_many_clients(site: Site, http: httpx.AsyncClient) -> None:
    seen: list[Answer] = []
    asks = [Ask(length, length % 2) for length in range(1, 13)]
    run = await replay(http, asks, clients=3, seconds=600, progress=seen.append)
    assert [len(prompt) for prompt in sorted(site.prompts, key=len)] == list(range(1, 13))
    assert site.most == 3
    assert Counter(answer.outcome for answer in run.answers) == {"ok": 6, "out_of_memory": 6}
    assert sorted(run.answers, key=lambda answer: answer.sent) == run.answers
    assert len(seen) == 12
    assert run.samples == [Sample(1.0, 100, 0.5)]


async def test_an_engine_behind_is_asked_for_what_it_used(site: Site, http: httpx.AsyncClient) -> None:
    async def front(request: httpx.Request) -> httpx.Response:
        assert request.url.path == PATH
        return httpx.Response(200, json={}, headers={WORKER: "77"})

    async with httpx.AsyncClient(transport=httpx.MockTransport(front), base_url="http://front") as workers:
        run = await replay(workers, [Ask(1, 0)], clients=1, seconds=600, engine=http)
    assert [answer.worker for answer in run.answers] == ["77"]
    assert run.samples == [Sample(1.0, 100, 0.5)]
    assert site.prompts == []


async def test_when_time_is_up_nothing_more_is_sent(site: Site, http: httpx.AsyncClient) -> None:
    run = await replay(http, [Ask(1, 0)] * 5, clients=2, seconds=GRACE - 1)
    assert run.answers == []
    assert site.prompts == []


async def test_a_client_can_have_all_its_requests_under_way() -> None:
    async with connect(8000, clients=48) as http:
        assert str(http.base_url) == "http://127.0.0.1:8000"
        assert http.timeout == httpx.Timeout(None)
