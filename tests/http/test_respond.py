"""Refusals as responses: bodies, headers, and what ``on_reject`` may give."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse

from gpu_admission import QueueFull, Rejected, RequestInfo, TooLarge, Unavailable, UnreadableBody
from gpu_admission.http.respond import response_for
from tests.cases.harness import Call, http_scope

pytestmark = pytest.mark.anyio


def refusal(kind: type[Rejected] = QueueFull, reason: str = "queue_full", **more: Any) -> Rejected:
    rejected = kind(reason, "no room", **more)
    rejected.complete(needed=7, capacity=100, waiting=3, retry_after=5)
    return rejected


async def answered(on_reject: Any, rejected: Rejected, method: str = "POST") -> Call:
    scope = http_scope(method=method)
    call = Call(response_for(on_reject, RequestInfo(scope), rejected), method=method)
    await call.run()
    assert call.error is None
    return call


async def test_a_refusal_is_problem_details_with_the_sizes_and_the_queue() -> None:
    call = await answered("problem", refusal())
    assert call.problem() == {
        "type": "urn:gpu-admission:queue_full",
        "title": "Too many requests are waiting",
        "status": 429,
        "detail": "no room",
        "reason": "queue_full",
        "needed_bytes": 7,
        "capacity_bytes": 100,
        "waiting": 3,
    }
    assert call.headers["retry-after"] == "5"


@pytest.mark.parametrize(
    ("rejected", "retry"),
    [
        (refusal(), None),
        (refusal(Unavailable, "draining"), None),
        (refusal(Unavailable, "gpu_unavailable", restart_only=True), "false"),
        (refusal(TooLarge, "too_large"), "false"),
    ],
    ids=lambda value: getattr(value, "reason", value),
)
async def test_only_what_may_be_tried_again_says_when(rejected: Rejected, retry: str | None) -> None:
    call = await answered("problem", rejected)
    assert call.status == rejected.status
    assert call.headers.get("x-should-retry") == retry
    assert ("retry-after" in call.headers) == (retry is None)


async def test_an_unreadable_body_is_a_400_that_says_nothing_of_trying_again() -> None:
    rejected = UnreadableBody("not JSON")
    rejected.complete(needed=None, capacity=100, waiting=0, retry_after=5)
    call = await answered("problem", rejected)
    assert (call.status, call.problem()["needed_bytes"]) == (400, None)
    assert not {"retry-after", "x-should-retry"} & call.headers.keys()


@pytest.mark.parametrize(
    ("rejected", "kind"),
    [
        (refusal(), "rate_limit_error"),
        (refusal(TooLarge, "too_large"), "invalid_request_error"),
        (refusal(Unavailable, "draining"), "server_error"),
    ],
    ids=lambda value: getattr(value, "reason", value),
)
async def test_the_openai_body(rejected: Rejected, kind: str) -> None:
    call = await answered("openai", rejected)
    assert call.headers["content-type"] == "application/json"
    assert json.loads(call.body) == {
        "error": {"message": "no room", "type": kind, "param": None, "code": rejected.reason}
    }
    assert call.headers["x-gpu-admission-reason"] == rejected.reason
    assert call.headers["cache-control"] == "no-store"


async def test_a_response_of_the_users_gets_the_headers_that_it_lacks() -> None:
    def on_reject(info: RequestInfo, rejected: Rejected) -> JSONResponse:
        return JSONResponse({"why": rejected.reason}, 503, {"Retry-After": "99", "X-Own": "1"})

    call = await answered(on_reject, refusal())
    assert (call.status, call.body) == (503, b'{"why":"queue_full"}')
    assert call.headers["retry-after"] == "99"
    assert call.headers["x-own"] == "1"
    assert call.headers["x-gpu-admission-reason"] == "queue_full"


async def test_a_response_that_is_given_again_and_again_keeps_nothing_of_the_last_one() -> None:
    busy = PlainTextResponse("busy", 429)
    first = await answered(lambda info, rejected: busy, refusal())
    second = await answered(lambda info, rejected: busy, refusal(TooLarge, "too_large"))
    assert first.headers["x-gpu-admission-reason"] == "queue_full"
    assert second.headers["x-gpu-admission-reason"] == "too_large"
    assert "retry-after" not in second.headers
    assert "x-gpu-admission-reason" not in busy.headers


async def test_a_streamed_response_of_the_users_is_sent_whole() -> None:
    async def stream() -> AsyncIterator[bytes]:
        yield b"data: busy\n\n"
        yield b"data: end\n\n"

    call = await answered(lambda info, rejected: StreamingResponse(stream(), 429), refusal())
    assert call.body == b"data: busy\n\ndata: end\n\n"
    assert call.headers["retry-after"] == "5"


@pytest.mark.parametrize("wrong", [None, "busy", {"a": 1}, 429])
async def test_what_is_no_response_is_logged_and_problem_details_are_sent(
    wrong: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        call = await answered(lambda info, rejected: wrong, refusal())
    assert call.problem()["reason"] == "queue_full"
    assert "on_reject failed" in caplog.text


async def test_an_on_reject_that_fails_is_logged_and_problem_details_are_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def on_reject(info: RequestInfo, rejected: Rejected) -> JSONResponse:
        raise ZeroDivisionError

    call = await answered(on_reject, refusal())
    assert call.problem()["reason"] == "queue_full"
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(
    "on_reject",
    ["problem", "openai", lambda info, rejected: PlainTextResponse("busy", 429)],
    ids=["problem", "openai", "own"],
)
async def test_head_gets_the_same_headers_and_no_body(on_reject: Any) -> None:
    whole = await answered(on_reject, refusal())
    head = await answered(on_reject, refusal(), method="HEAD")
    assert head.headers == whole.headers
    assert head.status == whole.status
    assert head.sent[1:] == [{"type": "http.response.body", "body": b""}]


async def test_a_reason_that_is_not_known_has_a_title_too() -> None:
    call = await answered("problem", refusal(reason="of_a_plugin"))
    assert call.problem()["title"] == "The request was refused"
