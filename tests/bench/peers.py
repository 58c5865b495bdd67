"""What each peer adds to one admitted request: from a bare semaphore to a whole admission control.

What each of them does for it is not alike, and is named beside its figure.
"""

from __future__ import annotations

import asyncio

from tests.bench.contenders import BARE, CHAT_READ, CONSTANT, CONTENDERS, NOTHING, ON_BASE, SLOWAPI
from tests.bench.overhead import added, requests
from tests.bench.sidebyside import medians, table

ROUNDS = 21
DOES = {
    BARE: "nothing",
    NOTHING: "nothing",
    "asyncio.Semaphore": "counts requests",
    "anyio.CapacityLimiter": "counts requests",
    "aiolimiter": "counts requests a minute (leaky bucket)",
    "limits": "counts requests a minute, by client address",
    SLOWAPI: "the same, by route and client address",
    CONSTANT: "counts bytes, bounds its queue, watches for clients that leave",
    CHAT_READ: "the same, by what each body asks",
    ON_BASE: "nothing",
    "fastapi-balancer": "counts requests, on BaseHTTPMiddleware",
}
SERVERS = "LitServe and BentoML are servers, not middleware: no app can be put behind them in process."


def run() -> str:
    with asyncio.Runner() as runner:
        measured = medians({name: requests(runner, CONTENDERS[name]()) for name in DOES}, ROUNDS)
    rows = [[row[0], DOES[row[0]], *row[1:]] for row in added(measured)]
    text = table("Added to one admitted request", ["peer", "what it does", "µs added", "ours = 1"], rows)
    return f"{text}\n\n{SERVERS}"
