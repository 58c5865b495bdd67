"""Answers that ran out of memory: noticed, and where asked for, ended well."""

from __future__ import annotations

import json
from typing import Any

import anyio
import openai
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from gpu_admission import Admission, GPUAdmission, current_lease
from gpu_admission.types import Event, Message, Receive, Scope, Send
from tests.cards import Card, HandClock, Opinion, look
from tests.cases.harness import Call, Scene, answer, read_body, saying, scenario, settle
from tests.test_openai_client import served

pytestmark = pytest.mark.anyio
SSE = (b"content-type", b"text/event-stream; charset=utf-8")
NDJSON = (b"content-type", b"application/x-ndjson")


def out_of_memory() -> RuntimeError:
    return RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")


async def fated(scope: Scope, receive: Receive, send: Send) -> None:
    """Begins as ``scope["test.begins"]`` says, and ends as ``scope["test.fate"]`` does."""
    call: Call = scope["call"]
    call.lease = current_lease()
    call.read = await read_body(receive)
    call.started.set()
    begins: tuple[tuple[bytes, bytes], ...] | None = scope.get("test.begins")
    if begins is not None:
        await send({"type": "http.response.start", "status": 200, "headers": list(begins)})
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
    if scope.get("test.reports"):
        assert call.lease is not None
        call.lease.report_oom()
    await call.may_finish.wait()
    fate = scope.get("test.fate", 200)
    if isinstance(fate, BaseException):
        raise fate
    await answer(send, b"done", status=fate)


def ends(scene: Scene) -> list[str]:
    return [event.outcome for event in scene.events if event.kind == "released" and event.route != "lease"]


# noticing


@pytest.mark.parametrize(
    ("status", "outcome"), [(200, "ok"), (399, "ok"), (400, "client"), (499, "client"), (500, "error")]
)
async def test_the_status_of_an_answer_is_how_its_work_ended(
    by_hand: HandClock, status: int, outcome: str
) -> None:
    async with scenario(fated, devices=[Card(by_hand)]) as scene:
        assert (await scene.run(**saying(fate=status))).status == status
    assert ends(scene) == [outcome]


async def test_what_the_app_reported_counts_whatever_it_answered(by_hand: HandClock) -> None:
    async with scenario(fated, devices=[Card(by_hand)]) as scene:
        assert (await scene.run(**saying(fate=500, reports=True))).status == 500
        assert (await scene.run(**saying(fate=200, reports=True))).status == 200
    assert ends(scene) == ["oom", "oom"]


async def test_an_app_that_returns_without_an_answer_has_shown_nothing(by_hand: HandClock) -> None:
    async def leaves(scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["type"] == "http.request"
        assert (await receive())["type"] == "http.disconnect"

    async with scenario(leaves, devices=[Card(by_hand)]) as scene:
        call = await scene.start()
        call.hang_up()
    assert ends(scene) == ["client"]


async def test_a_stream_whose_client_leaves_has_shown_nothing(by_hand: HandClock) -> None:
    async def stream(request: Request) -> Response:
        async def endless() -> Any:
            yield b"data: 1\n\n"
            await anyio.sleep_forever()

        await request.body()
        return StreamingResponse(endless(), media_type="text/event-stream")

    app = Starlette(routes=[Route("/work", stream, methods=["POST"])])
    async with scenario(app, devices=[Card(by_hand)]) as scene:
        call = await scene.start()
        assert call.body == b"data: 1\n\n"
        call.hang_up()
    assert ends(scene) == ["client"]


async def test_without_guards_the_status_tells_it_too() -> None:
    async with scenario(fated) as scene:
        for status in (200, 404, 500):
            await scene.run(**saying(fate=status))
    assert ends(scene) == ["ok", "client", "error"]


def test_on_a_route_of_its_own_the_status_counts_too(by_hand: HandClock) -> None:
    events: list[Event] = []
    admission = Admission(capacity=100, devices=[Card(by_hand)], estimator=1, observers=[events.append])

    @admission.admit
    async def work(request: Request) -> Response:
        return JSONResponse({}, int(request.query_params["status"]))

    with TestClient(Starlette(routes=[Route("/work", work, methods=["POST"])])) as client:
        for status in (200, 404, 500):
            client.post(f"/work?status={status}")
    assert [event.outcome for event in events if event.kind == "released"] == ["ok", "client", "error"]


# the app's exception


@pytest.mark.parametrize("settings", [{}, {"oom_event": True}, {"oom_status": 503}])
@pytest.mark.parametrize("begins", [None, (), (SSE,)])
async def test_an_exception_that_is_not_out_of_memory_passes_untouched(
    by_hand: HandClock, settings: dict[str, Any], begins: Any
) -> None:
    error = ValueError("the user wrote: CUDA out of memory")
    async with scenario(fated, devices=[Card(by_hand)], **settings) as scene:
        call = await scene.run(**saying(fate=error, begins=begins))
    assert call.error is error
    assert len(call.sent) == (0 if begins is None else 2)
    assert ends(scene) == ["error"]


async def test_bl_09_out_of_memory_passes_untouched_unless_asked_for(by_hand: HandClock) -> None:
    error = out_of_memory()
    async with scenario(fated, devices=[Card(by_hand)]) as scene:
        before, during = (
            await scene.run(**saying(fate=error)),
            await scene.run(**saying(fate=error, begins=(SSE,))),
        )
    assert before.error is during.error is error
    assert (len(before.sent), len(during.sent)) == (0, 2)
    assert ends(scene) == ["oom", "oom"]
    assert scene.admission.snapshot().devices[0].closed_by == "out-of-memory"


# in its place


async def test_out_of_memory_may_be_answered_with_a_status(by_hand: HandClock) -> None:
    async with scenario(fated, devices=[Card(by_hand)], oom_status=503) as scene:
        call = await scene.run(**saying(fate=out_of_memory()))
        problem = call.problem()
    assert call.error is None
    assert (call.status, problem["reason"]) == (503, "gpu_unavailable")
    assert problem["detail"] == "the device ran out of memory (oom_status=503)"
    assert 1 <= int(call.headers["retry-after"]) <= 60
    assert ends(scene) == ["oom"]


async def test_any_error_status_may_be_chosen_and_the_answer_is_as_every_refusal() -> None:
    async with scenario(fated, oom_status=507, on_reject="openai") as scene:
        call = await scene.run(**saying(fate=ExceptionGroup("in a task", [out_of_memory()])))
    assert call.status == 507
    assert json.loads(call.body)["error"]["code"] == "gpu_unavailable"


async def test_its_bytes_are_back_before_the_answer_goes_out() -> None:
    held: list[int] = []

    class Looking(Call):
        async def send(self, message: Message) -> None:
            held.append(scene.in_use)
            await super().send(message)

    async with scenario(fated, oom_status=503) as scene:
        call = Looking(scene.app, cost=60, **saying(fate=out_of_memory()))
        call.finish()
        await call.run()
    assert held == [0, 0]
    assert call.status == 503


async def test_an_answer_that_has_begun_is_not_begun_again(by_hand: HandClock) -> None:
    error = out_of_memory()
    async with scenario(fated, devices=[Card(by_hand)], oom_status=503) as scene:
        call = await scene.run(**saying(fate=error, begins=(SSE,)))
    assert call.error is error
    assert len(call.sent) == 2


async def test_a_cancellation_is_never_answered_though_out_of_memory_was_reported() -> None:
    async with scenario(fated, oom_status=503, oom_event=True) as scene:
        before, during = (
            await scene.start(**saying(reports=True)),
            await scene.start(**saying(reports=True, begins=(SSE,))),
        )
        before.cancel()
        during.cancel()
    assert before.cancelled
    assert during.cancelled
    assert (before.sent, len(during.sent)) == ([], 2)
    assert ends(scene) == ["oom", "oom"]


async def test_another_failure_after_a_report_is_the_apps_own() -> None:
    error = LookupError()
    async with scenario(fated, oom_status=503) as scene:
        call = await scene.run(**saying(fate=error, reports=True))
    assert call.error is error
    assert call.sent == []


async def failing_page(scope: Scope, receive: Receive, send: Send) -> None:
    """As a framework does: an error page of ``scope["test.pages"]`` chunks, and then the exception."""
    call: Call = scope["call"]
    call.read = await read_body(receive)
    await send({"type": "http.response.start", "status": 500, "headers": []})
    pages: int = scope["test.pages"]
    for page in range(pages):
        await send({"type": "http.response.body", "body": b"page", "more_body": page + 1 < pages})
    if scope["test.fate"] is not None:
        raise scope["test.fate"]


@pytest.mark.parametrize("whole", [True, False])
async def test_an_error_page_of_the_frameworks_is_replaced_too(whole: bool) -> None:
    async with scenario(failing_page, oom_status=503) as scene:
        call = await scene.run(**saying(fate=out_of_memory(), pages=1 if whole else 0))
    assert (call.error, call.status) == (None, 503)
    assert ends(scene) == ["oom"]


@pytest.mark.parametrize("pages", [1, 2])
@pytest.mark.parametrize("fate", [None, LookupError()])
async def test_another_error_page_is_sent_as_it_is(fate: Exception | None, pages: int) -> None:
    async with scenario(failing_page, oom_status=503) as scene:
        call = await scene.run(**saying(fate=fate, pages=pages))
    assert (call.error, call.status, call.body) == (fate, 500, b"page" * pages)


async def test_a_long_error_page_has_begun() -> None:
    error = out_of_memory()
    async with scenario(failing_page, oom_status=503) as scene:
        call = await scene.run(**saying(fate=error, pages=2))
    assert (call.error, call.status, call.body) == (error, 500, b"pagepage")


async def test_an_error_page_that_can_not_be_sent_does_not_hide_the_apps_exception() -> None:
    error = LookupError()
    async with scenario(failing_page, oom_status=503) as scene:
        call = scene.call(**saying(fate=error, pages=1))
        call.send_fails_at = 0
        await call.run()
    assert call.error is error


async def test_a_status_of_500_may_be_chosen() -> None:
    async with scenario(failing_page, oom_status=500) as scene:
        call = await scene.run(**saying(fate=out_of_memory(), pages=1))
    assert (call.status, call.problem()["status"]) == (500, 500)


def test_on_a_route_of_its_own_a_broken_stream_ends_with_an_event() -> None:
    admission = Admission(capacity=100, estimator=1, oom_event=True, oom_status=503)

    @admission.admit
    async def chat(request: Request) -> Response:
        async def chunks() -> Any:
            yield b"data: 1\n\n"
            raise out_of_memory()

        return StreamingResponse(chunks(), media_type="text/event-stream")

    app = Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])
    with TestClient(app, raise_server_exceptions=False) as client:
        body = client.post("/v1/chat/completions", json={"messages": []}).text
    assert body.startswith("data: 1\n\ndata: {")
    assert body.endswith("data: [DONE]\n\n")
    assert admission.in_use == 0


async def test_what_the_own_classifier_calls_out_of_memory_is_answered() -> None:
    async with scenario(fated, oom_status=503, classify=lambda error: "oom") as scene:
        call = await scene.run(**saying(fate=KeyError()))
    assert call.status == 503


# in a stream


@pytest.mark.parametrize(
    ("path", "end"),
    [
        ("/v1/chat/completions", b"data: [DONE]\n\n"),
        ("/work", b'"code":"out_of_memory"}}\n\n'),
    ],
)
async def test_a_stream_of_events_gets_the_dialects_error_event_and_ends(path: str, end: bytes) -> None:
    error = out_of_memory()
    async with scenario(fated, oom_event=True) as scene:
        call = await scene.run(path=path, **saying(fate=error, begins=(SSE,)))
    assert call.error is error
    first, last = call.sent[1], call.sent[-1]
    assert first["body"] == b"data: 1\n\n"
    assert b"the device ran out of memory" in last["body"]
    assert last["body"].endswith(end)
    assert last["more_body"] is False


@pytest.mark.parametrize(
    ("path", "begins", "sends"),
    [
        ("/api/chat", (NDJSON,), True),
        ("/api/chat", (SSE,), False),
        ("/v1/chat/completions", (NDJSON,), False),
        ("/v1/chat/completions", ((b"content-type", b"text/plain"),), False),
        ("/v1/chat/completions", (), False),
        ("/v1/chat/completions", (SSE, (b"content-encoding", b"gzip")), False),
    ],
)
async def test_an_event_is_sent_only_in_the_streams_own_form(path: str, begins: Any, sends: bool) -> None:
    async with scenario(fated, oom_event=True) as scene:
        call = await scene.run(path=path, **saying(fate=out_of_memory(), begins=begins))
    assert len(call.sent) == 2 + sends
    if sends:
        assert json.loads(call.sent[-1]["body"]) == {"error": "the device ran out of memory"}


async def test_after_the_last_chunk_nothing_is_sent() -> None:
    async def late(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [SSE]})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
        raise out_of_memory()

    async with scenario(late, oom_event=True) as scene:
        call = await scene.run()
    assert str(call.error) == str(out_of_memory())
    assert len(call.sent) == 2


@pytest.mark.parametrize("settings", [{"oom_event": True}, {"oom_status": 503}])
async def test_a_client_that_has_gone_does_not_hide_the_apps_exception(settings: dict[str, Any]) -> None:
    error = out_of_memory()
    async with scenario(fated, **settings) as scene:
        call = scene.call(**saying(fate=error, begins=(SSE,) if "oom_event" in settings else None))
        call.send_fails_at = 2 if "oom_event" in settings else 0
        call.finish()
        await call.run()
    assert call.error is error
    assert ends(scene) == ["oom"]


async def test_other_messages_of_an_answer_pass_as_they_are(by_hand: HandClock) -> None:
    messages: list[Message] = [
        {"type": "http.response.start", "status": 200, "headers": [], "trailers": True},
        {"type": "http.response.push", "path": "/x", "headers": []},
        {"type": "http.response.body", "body": b"x"},
        {"type": "http.response.trailers", "headers": []},
    ]

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in messages:
            await send(message)

    async with scenario(app, devices=[Card(by_hand)]) as scene:
        call = await scene.run()
    assert all(sent is message for sent, message in zip(call.sent, messages, strict=True))
    assert ends(scene) == ["ok"]


def test_the_openai_client_raises_what_a_broken_stream_tells() -> None:
    """The official client, a real server, a stream that runs out of memory after its first chunk."""
    chunk = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": []}

    async def chat(request: Request) -> Response:
        async def chunks() -> Any:
            yield f"data: {json.dumps(chunk)}\n\n"
            raise out_of_memory()

        return StreamingResponse(chunks(), media_type="text/event-stream")

    app = GPUAdmission(
        Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])]),
        capacity=100,
        estimator=10,
        oom_event=True,
    )
    got = []
    with served(app) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
        stream = client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hello"}], stream=True
        )
        with pytest.raises(openai.APIError, match="the device ran out of memory") as caught:
            got += list(stream)
    assert caught.value.code == "out_of_memory"
    assert app.admission.snapshot().in_use == 0


def test_the_openai_client_raises_a_503_for_what_ran_out_of_memory_before_it_answered() -> None:
    async def chat(request: Request) -> Response:
        raise out_of_memory()

    app = GPUAdmission(
        Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])]),
        capacity=100,
        estimator=10,
        oom_status=503,
        on_reject="openai",
    )
    with (
        served(app) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client,
        pytest.raises(openai.InternalServerError) as caught,
    ):
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hello"}])
    assert (caught.value.status_code, caught.value.code) == (503, "gpu_unavailable")


async def test_a_guard_sees_the_end_before_the_next_request_starts(by_hand: HandClock) -> None:
    guard = Opinion()
    async with scenario(fated, devices=[Card(by_hand)], guards=[guard]) as scene:
        first = await scene.start(cost=100, **saying(fate=out_of_memory()))
        second = await scene.start(cost=100)
        guard.limit = 0
        first.finish()
        await settle()
        assert [outcome.kind for outcome in guard.shown] == ["oom"]
        assert not second.reached_app
        guard.limit = None
        look(scene.admission)
    assert second.status == 503
