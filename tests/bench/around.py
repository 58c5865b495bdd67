"""What the same middleware adds around a bare echo and around a FastAPI endpoint, in one process.

No server is involved. The instructions are the same around both; around FastAPI the processor's caches
and predictions are full of the app's own code when a middleware's turn comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.types import ASGIApp

from tests.bench.asgi import echo
from tests.bench.contenders import CHAT_READ, NOTHING, SLOWAPI, Nothing, Wrapped, ours, slowapi
from tests.bench.overhead import requests
from tests.bench.server import fastapi
from tests.bench.sidebyside import medians, table

COUNT, ROUNDS = 300, 15
AROUND: dict[str, Callable[[], ASGIApp]] = {"an echo": lambda: echo, "FastAPI": fastapi}
MIDDLEWARES: dict[str, Callable[[ASGIApp], Wrapped]] = {
    NOTHING: lambda app: (Nothing(app), {}),
    CHAT_READ: ours,
    SLOWAPI: slowapi,
}


def run() -> str:
    measured = {}
    with asyncio.Runner() as runner:
        for around, app in AROUND.items():
            wrapped = {name: put(app()) for name, put in MIDDLEWARES.items()}
            measures = {name: requests(runner, each, count=COUNT) for name, each in wrapped.items()}
            measured[around] = medians(measures, ROUNDS)
    rows = []
    for name in (CHAT_READ, SLOWAPI):
        echoed, served = ((found[name] - found[NOTHING]) * 1e6 for found in measured.values())
        rows.append([name, f"{echoed:.1f}", f"{served:.1f}", f"{served / echoed:.2f}"])
    header = ["middleware", *(f"µs added around {around}" for around in AROUND), "times as much"]
    return table("The same middleware around more than an echo, in process", header, rows)
