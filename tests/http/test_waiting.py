"""``while_waiting="sse"``: the official client sees a normal stream, or a normal error, after a wait."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import openai
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from gpu_admission import Admission, GPUAdmission, Lease
from gpu_admission.http import waiting
from gpu_admission.testing.calls import chunks
from gpu_admission.types import Estimate, Message
from tests.cases.harness import Call, settle, until
from tests.test_openai_client import served

CHAT = "/v1/chat/completions"
BODY = json.dumps(
    {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "stream": True}
).encode()
TYPE = {"content-type": "application/json"}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "FIRST_SECONDS", 0.01)
    monkeypatch.setattr(waiting, "EVERY_SECONDS", 0.01)


def part(text: str) -> str:
    choice = {"index": 0, "delta": {"role": "assistant", "content": text}}
    whole = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [choice]}
    return f"data: {json.dumps(whole)}\n\n"


async def stream(request: Request) -> Response:
    async def parts() -> AsyncIterator[str]:
        for word in ("a", "b", "c"):
            yield part(word)
        yield "data: [DONE]\n\n"

    return StreamingResponse(parts(), 200, {"x-model": "m"}, "text/event-stream")


async def invalid(request: Request) -> Response:
    return JSONResponse({"error": {"message": "no such model", "type": "invalid"}}, 404)


async def whole(request: Request) -> Response:
    return JSONResponse({"answer": 1})


async def broken(*args: Any) -> Response:
    raise ValueError("secret")


async def long(request: Request) -> Response:
    return PlainTextResponse("x" * 100_000)


class Site:
    """A chat endpoint behind a full budget."""

    def __init__(self, endpoint: Any = stream, **settings: Any) -> None:
        defaults = {"capacity": 100, "estimator": 60, "timeout": 30, "while_waiting": "sse"}
        self.admission = Admission(**{**defaults, **settings})
        paths = (CHAT, "/api/chat")
        routes = [Route(path, endpoint, methods=["POST"]) for path in paths]
        self.app = GPUAdmission(Starlette(routes=routes), admission=self.admission)

    async def fill(self) -> Lease:
        return await self.admission.entrance.acquire(Estimate(100))


def words(url: str, seen: list[str]) -> list[str]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
        answer = client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], max_tokens=5, stream=True
        )
        seen.append(answer.response.headers["content-type"])
        return [chunk.choices[0].delta.content or "" for chunk in answer]


def full(site: Site) -> Lease:
    """Fill it from outside of its loop."""
    context = site.admission.lease(100)
    return context.__enter__()


def test_the_official_client_sees_a_normal_stream(caplog: pytest.LogCaptureFixture) -> None:
    site, seen = Site(), []  # type: ignore[var-annotated]
    with served(site.app) as url, ThreadPoolExecutor(1) as pool:
        assert words(url, seen) == ["a", "b", "c"]
        held = full(site)
        asking = pool.submit(words, url, seen)
        with caplog.at_level(logging.WARNING, logger="gpu_admission"):
            while len(seen) < 2:  # it has the headers while it waits
                assert not asking.done()
            assert site.admission.waiting == 1
            held.release()
            assert asking.result(20) == ["a", "b", "c"]
    assert "x-model" in caplog.text
    assert site.admission.in_use == 0


def test_the_official_client_sees_a_normal_error() -> None:
    site, seen = Site(timeout=0.3), []  # type: ignore[var-annotated]
    with served(site.app) as url:
        assert words(url, seen) == ["a", "b", "c"]
        held = full(site)
        with pytest.raises(openai.APIError, match=r"not free within timeout=0\.3 s"):
            words(url, seen)
        held.release()
    assert len(seen) == 2
    assert site.admission.snapshot().counts["queue_timeout"] == 1


def call(site: Site, path: str = CHAT, body: bytes = BODY, **headers: str) -> Call:
    raw = [(name.encode(), value.encode()) for name, value in {**TYPE, **headers}.items()]
    return Call(site.app, body, path=path, headers=raw)


async def kept(site: Site, one: Call) -> str:
    """What ``one`` was sent, with a wait of at least one comment."""
    async with anyio.create_task_group() as group:
        held = await site.fill()
        group.start_soon(one.run)
        await until(lambda: b": waiting" in one.body)
        held.release()
        with anyio.fail_after(10):
            await one.done.wait()
    return one.body.decode()


@pytest.mark.anyio
async def test_comments_tell_place_and_forecast_and_the_stream_follows() -> None:
    site = Site()
    one = call(site)
    sent = await kept(site, one)
    assert sent.startswith(": waiting, place 1 of 1")
    assert sent.endswith("data: [DONE]\n\n")
    assert one.status == 200
    assert one.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert one.headers["x-accel-buffering"] == "no"
    assert site.admission.in_use == 0


@pytest.mark.anyio
async def test_an_accept_header_asks_for_an_event_stream_too() -> None:
    site = Site()
    sent = await kept(site, call(site, body=BODY.replace(b"true", b"false"), accept="text/event-stream"))
    assert sent.startswith(": waiting, place 1 of 1")


@pytest.mark.anyio
async def test_a_comment_names_no_place_where_very_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_admission.http.waiting.MOST_COUNTED", 0)
    site = Site()
    assert (await kept(site, call(site))).startswith(": waiting\n\n")


@pytest.mark.anyio
async def test_the_load_is_told_as_the_stream_begins(caplog: pytest.LogCaptureFixture) -> None:
    site = Site(load_header=True)
    one = call(site)
    await kept(site, one)
    assert "named_metrics.num_requests_waiting=1" in one.headers["endpoint-load-metrics"]
    assert "endpoint-load-metrics" not in caplog.text  # it is not among the headers that came too late


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("endpoint", "last"),
    [
        (invalid, '"message":"no such model"'),
        (long, '"message":"the app answered with status 200"'),
        (whole, 'data: {"answer":1}\n\n'),
    ],
    ids=["an error", "too long", "no stream"],
)
async def test_another_answer_of_the_app_is_fitted_in(endpoint: Any, last: str) -> None:
    site = Site(endpoint)
    sent = await kept(site, call(site))
    assert last in sent
    assert sent.endswith("\n\n")


@pytest.mark.anyio
@pytest.mark.parametrize("code", ["http_500", "internal_error"])
async def test_an_app_that_raises_ends_the_stream_with_an_error_and_raises(code: str) -> None:
    site = Site(broken)
    if code == "internal_error":  # without a framework that answers before it raises
        site.app.app = broken  # type: ignore[assignment]
    one = call(site)
    sent = await kept(site, one)
    assert "secret" not in sent
    assert isinstance(one.error, ValueError)
    assert f'"code":"{code}"' in sent
    assert site.admission.in_use == 0


@pytest.mark.anyio
@pytest.mark.parametrize(
    "how",
    [
        {"body": BODY.replace(b"true", b"false")},
        {"path": "/api/chat"},
        {"body": b"no json"},
    ],
    ids=["no stream was asked for", "the API streams lines", "unreadable"],
)
async def test_who_asks_for_no_event_stream_waits_as_ever(how: dict[str, Any]) -> None:
    site = Site()
    held = await site.fill()
    one = call(site, **how)
    async with anyio.create_task_group() as group:
        group.start_soon(one.run)
        await anyio.sleep(0.1)
        assert (one.sent, site.admission.waiting) == ([], 1)
        held.release()
        await one.done.wait()
    assert one.status == 200


@pytest.mark.anyio
async def test_a_body_that_comes_slowly_is_kept_alive_once_it_has_come() -> None:
    site = Site()
    held = await site.fill()
    one = Call(site.app, path=CHAT, headers=[(b"content-type", b"application/json")], messages=[])
    async with anyio.create_task_group() as group:
        group.start_soon(one.run)
        one.feed(*chunks(BODY[:10], complete=False))
        await until(lambda: site.admission.waiting == 1)
        await anyio.sleep(5 * waiting.FIRST_SECONDS)
        assert one.sent == []
        one.feed(*chunks(BODY[10:]))
        await until(lambda: b": waiting" in one.body)
        held.release()
    assert one.body.endswith(b"data: [DONE]\n\n")


@pytest.mark.anyio
async def test_a_client_that_leaves_while_it_is_kept_alive_gives_its_place_up() -> None:
    site = Site()
    held = await site.fill()
    one = call(site)
    async with anyio.create_task_group() as group:
        group.start_soon(one.run)
        await until(lambda: b": waiting" in one.body)
        one.hang_up()
        await one.done.wait()
        assert site.admission.waiting == 0
    held.release()
    assert site.admission.snapshot().counts == {"admitted": 1, "disconnected": 1}


@pytest.mark.anyio
async def test_a_client_whose_connection_fails_gives_its_place_up() -> None:
    site = Site()
    held = await site.fill()
    one = call(site)

    async def send(message: Message) -> None:
        raise OSError

    one.send = send  # type: ignore[method-assign]
    with anyio.fail_after(10):
        await one.run()
    assert site.admission.waiting == 0
    held.release()


@pytest.mark.anyio
@pytest.mark.parametrize("while_waiting", [None, "sse"])
async def test_what_starts_at_once_or_is_off_is_byte_for_byte_the_apps(while_waiting: str | None) -> None:
    plain = Call(Starlette(routes=[Route(CHAT, stream, methods=["POST"])]), BODY, path=CHAT)
    await plain.run()
    site = Site(while_waiting=while_waiting)
    one = call(site)
    if while_waiting:
        await one.run()
    else:
        held = await site.fill()
        async with anyio.create_task_group() as group:
            group.start_soon(one.run)
            await settle()
            await anyio.sleep(0.1)
            assert one.sent == []
            held.release()
    assert one.sent == plain.sent
