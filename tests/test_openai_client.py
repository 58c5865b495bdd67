"""The official OpenAI client behind a full budget, against a real server."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from gpu_admission import Admission, GPUAdmission, Lease, RequestInfo
from gpu_admission.types import Event

ANSWER = {
    "id": "1",
    "object": "chat.completion",
    "created": 0,
    "model": "m",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}],
}


@contextmanager
def served(app: Any) -> Iterator[str]:
    """``app`` behind uvicorn on a free port."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    started = threading.Event()
    startup = server.startup

    async def announce(*args: Any, **kwargs: Any) -> None:
        await startup(*args, **kwargs)
        started.set()

    server.startup = announce  # type: ignore[method-assign]
    thread = threading.Thread(target=server.run)
    thread.start()
    assert started.wait(20)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)


class Backend:
    """A chat endpoint that can be filled up from outside, and counts how often it was asked."""

    def __init__(self, estimator: Callable[[RequestInfo], int]) -> None:
        self.events: list[Event] = []
        self.on_refusal: Callable[[], None] = lambda: None
        self.asked = 0
        self.admission = Admission(
            capacity=100, estimator=estimator, timeout=0, on_reject="openai", observers=[self.observe]
        )
        routes = [
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/fill", self.fill, methods=["GET"]),
        ]
        self.app = GPUAdmission(Starlette(routes=routes), admission=self.admission)
        self.held: Lease | None = None

    def observe(self, event: Event) -> None:
        self.events.append(event)
        if event.kind == "refused":
            self.on_refusal()

    async def chat(self, request: Request) -> JSONResponse:
        self.asked += 1
        return JSONResponse(ANSWER)

    async def fill(self, request: Request) -> JSONResponse:
        context = self.admission.lease(100)
        self.held = await context.__aenter__()
        return JSONResponse({})

    def refused(self) -> list[str]:
        return [event.reason for event in self.events if event.kind == "refused"]


def ask(url: str, retries: int, content: str = "hello") -> Any:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=retries) as client:
        return client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": content}], max_tokens=5
        )


def fill(url: str) -> None:
    with openai.OpenAI(base_url=url, api_key="x") as client:
        client.get("/fill", cast_to=object)


def test_a_full_budget_raises_rate_limit_error() -> None:
    backend = Backend(lambda info: 10)
    with served(backend.app) as url:
        fill(url)
        with pytest.raises(openai.RateLimitError) as caught:
            ask(url, retries=0)
    assert caught.value.status_code == 429
    assert caught.value.code == "queue_timeout"
    assert 1 <= int(caught.value.response.headers["retry-after"]) <= 60
    assert "timeout=0" in json.loads(caught.value.response.text)["error"]["message"]
    assert backend.asked == 0


def test_the_client_waits_as_told_and_succeeds_once_bytes_are_free() -> None:
    backend = Backend(lambda info: 10)
    with served(backend.app) as url:
        fill(url)
        assert backend.held is not None
        backend.on_refusal = backend.held.release
        answer = ask(url, retries=3)
    assert answer.choices[0].message.content == "hi"
    assert backend.refused() == ["queue_timeout"]
    assert backend.asked == 1
    assert backend.admission.snapshot().in_use == 0


def test_what_can_never_fit_is_not_tried_again() -> None:
    backend = Backend(lambda info: info.workload.prompt_tokens)
    with served(backend.app) as url, pytest.raises(openai.APIStatusError) as caught:
        ask(url, retries=5, content="word " * 1000)
    assert caught.value.status_code == 413
    assert caught.value.response.headers["x-should-retry"] == "false"
    assert backend.refused() == ["too_large"]
