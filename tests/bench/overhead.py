"""What a middleware adds to one request, over a middleware that does nothing."""

from __future__ import annotations

import asyncio

from tests.bench.asgi import CHAT_PATH, calls, seconds
from tests.bench.contenders import CHAT_READ, CONSTANT, CONTENDERS, NOTHING, ON_BASE, SLOWAPI, Wrapped, ours
from tests.bench.sidebyside import Measure, medians, table

REQUESTS, ROUNDS = 500, 21
NAMES = (NOTHING, CONSTANT, CHAT_READ, SLOWAPI, ON_BASE)


def requests(
    runner: asyncio.Runner, wrapped: Wrapped, path: str = CHAT_PATH, *, count: int = REQUESTS
) -> Measure:
    app, more = wrapped
    return lambda: seconds(runner, calls(app, count, path, **more), count)


def added(measured: dict[str, float]) -> list[list[str]]:
    """A row for each, with what it adds to the middleware that does nothing, and beside ours."""
    base = measured[NOTHING]
    chat = measured[CHAT_READ] - base
    return [
        [name, f"{(value - base) * 1e6:.1f}", f"{(value - base) / chat:.2f}"]
        for name, value in measured.items()
    ]


def run() -> str:
    with asyncio.Runner() as runner:
        measures = {name: requests(runner, CONTENDERS[name]()) for name in NAMES}
        measures["GPUAdmission, path not metered"] = requests(runner, ours(), "/other")
        measured = medians(measures, ROUNDS)
    header = ["middleware", "µs added", "ours = 1"]
    return table("Added to one 2 kB chat request", header, added(measured))
