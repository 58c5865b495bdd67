"""A 10 MB JSON body: how long the event loop stalls, and what reading it costs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable

import orjson

from gpu_admission import GPUAdmission, RequestInfo
from gpu_admission.estimators import Linear
from tests.bench.asgi import call, echo, scope_of
from tests.bench.sidebyside import medians, table

ROUNDS = 9


def messages_body(size: int = 10_000_000) -> bytes:
    message = {"role": "user", "content": "The quick brown fox jumps over the lazy dog. " * 20}
    count = size // len(json.dumps(message))
    return json.dumps({"model": "m", "messages": [message] * count, "max_tokens": 100}).encode()


def text_body(size: int = 10_000_000) -> bytes:
    content = "The quick brown fox jumps over the lazy dog.\n" * (size // 46)
    return json.dumps({"messages": [{"role": "user", "content": content}], "max_tokens": 9}).encode()


def longest_stall(body: bytes) -> Callable[[], float]:
    """Seconds between two turns of a task that does nothing but turn, while one body is read."""
    estimator = Linear({"prompt_tokens": 1000, "new_tokens": 1000})
    app = GPUAdmission(echo, capacity="1TiB", estimator=estimator)

    async def measure() -> float:
        longest, done = 0.0, False

        async def turn() -> None:
            nonlocal longest
            last = time.perf_counter()
            while not done:
                await asyncio.sleep(0.0005)
                now = time.perf_counter()
                longest, last = max(longest, now - last), now

        turning = asyncio.ensure_future(turn())
        await asyncio.sleep(0.005)
        await call(app, scope_of(), body)
        done = True
        await turning
        return longest

    return lambda: asyncio.run(measure())


def reading(body: bytes) -> Callable[[], float]:
    def measure() -> float:
        start = time.perf_counter()
        workload = RequestInfo(scope_of(), body).workload
        assert workload.prompt_tokens
        return time.perf_counter() - start

    return measure


def orjson_reading(body: bytes) -> Callable[[], float]:
    def measure() -> float:
        start = time.perf_counter()
        orjson.loads(body)
        return time.perf_counter() - start

    return measure


def run() -> str:
    rows = []
    for name, body in (("12,000 messages", messages_body()), ("one long text", text_body())):
        measured = medians(
            {
                "stall": longest_stall(body),
                "idle": longest_stall(b'{"messages": [], "max_tokens": 9}'),
                "ours": reading(body),
                "orjson": orjson_reading(body),
            },
            ROUNDS,
        )
        rows.append(
            [
                name,
                f"{measured['stall'] * 1e3:.1f} ms",
                f"{measured['idle'] * 1e3:.1f} ms",
                f"{measured['ours'] * 1e3:.1f} ms",
                f"{measured['ours'] / measured['orjson']:.2f}",
            ]
        )
    header = ["10 MB body", "longest stall", "stall without it", "reading it", "orjson.loads = 1"]
    return table("Large bodies", header, rows)
