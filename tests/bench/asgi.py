"""A raw ASGI request and app for benchmarks: no server, no client, only what is measured."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Coroutine
from typing import Any

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CHAT = json.dumps(
    {"model": "m", "messages": [{"role": "user", "content": "x" * 1900}], "max_tokens": 100}
).encode()


CHAT_PATH = "/v1/chat/completions"


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    while (await receive()).get("more_body", False):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})


def scope_of(path: str = CHAT_PATH, **more: Any) -> Scope:
    headers = [
        (b"host", b"localhost"),
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(CHAT)),
        (b"user-agent", b"openai/python"),
        (b"accept", b"*/*"),
        (b"authorization", b"Bearer x"),
    ]
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": headers,
        "client": ("192.0.2.1", 1),
        "server": ("localhost", 80),
        **more,
    }


async def call(app: ASGIApp, scope: Scope, body: bytes = CHAT) -> list[Message]:
    """One request; the messages that the app sent."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    sent: list[Message] = []

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await anyio.sleep_forever()
        raise AssertionError("it never returns")

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent


async def calls(app: ASGIApp, count: int, path: str = CHAT_PATH, /, **more: Any) -> None:
    """``count`` requests, one after the other; ``more`` goes into their scopes."""
    for _ in range(count):
        await call(app, scope_of(path, **more))


def seconds(runner: asyncio.Runner, work: Coroutine[Any, Any, Any], count: int) -> float:
    """Seconds for each of the ``count`` requests that ``work`` makes."""
    start = time.perf_counter()
    runner.run(work)
    return (time.perf_counter() - start) / count
