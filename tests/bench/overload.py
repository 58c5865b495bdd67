"""What comes of it when more is asked than fits: the same requests, with different ways to let them in.

Everything is real but the device and the time: requests go through each middleware to an app that
holds bytes of a simulated device for some seconds, on a virtual clock. Who does not fit on it fails.
Clients give up when their work has not begun after ``PATIENCE`` seconds. All sizes are known exactly.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import anyio
from starlette.types import ASGIApp, Receive, Scope, Send

from gpu_admission import GPUAdmission, RequestInfo
from tests.bench import virtual
from tests.bench.asgi import call, scope_of
from tests.bench.contenders import Within
from tests.bench.sidebyside import table

GIB = 2**30
CAPACITY = 20 * GIB
PATIENCE = 30.0
SECONDS = 1800.0
LOADS = (2.0, 0.8)
SMALL, LARGE = (GIB // 4, GIB), (8 * GIB, 14 * GIB)


@dataclass(slots=True, eq=False)
class Job:
    """One request: when it comes, what it holds for how long, and what came of it."""

    at: float
    bytes: int
    seconds: float
    started: float = math.inf
    failed: bool = False
    beside_large: bool = False
    """A large one waited when it came."""

    @property
    def is_large(self) -> bool:
        return self.bytes > SMALL[1]

    @property
    def wait(self) -> float:
        """Seconds until it began; of one that gave up, its patience."""
        return min(self.started - self.at, PATIENCE)


class Device:
    """An ASGI app that holds the bytes of a job for its seconds, if they are free."""

    def __init__(self) -> None:
        self.held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        job: Job = scope["job"]
        job.started = asyncio.get_running_loop().time()
        scope["patience"].reschedule(None)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if self.held + job.bytes > CAPACITY:
            job.failed = True
        else:
            self.held += job.bytes
            await asyncio.sleep(job.seconds)
            self.held -= job.bytes
        await send({"type": "http.response.body", "body": b""})


def jobs(load: float) -> list[Job]:
    """Nine small ones to each large one, at random times; ``load`` times what the device can hold."""
    draw = random.Random(1)
    made: list[Job] = []
    asked = 0.0
    while asked < load * CAPACITY * SECONDS:
        large = draw.random() < 0.1
        size = draw.randint(*(LARGE if large else SMALL))
        job = Job(draw.uniform(0, SECONDS), size, draw.uniform(5, 15) if large else draw.uniform(1, 3))
        asked += job.bytes * job.seconds
        made.append(job)
    return sorted(made, key=lambda job: job.at)


Wrap: TypeAlias = Callable[[ASGIApp, Sequence[Job]], ASGIApp]


def at_worst(app: ASGIApp, asked: Sequence[Job]) -> ASGIApp:
    """As many at once as fit if all are the largest."""
    return Within(app, asyncio.Semaphore(CAPACITY // max(job.bytes for job in asked)))


def mean(asked: Sequence[Job]) -> int:
    """As many as fit if all are the mean."""
    return CAPACITY * len(asked) // sum(job.bytes for job in asked)


def ours(app: ASGIApp, asked: Sequence[Job]) -> ASGIApp:
    return GPUAdmission(app, capacity=CAPACITY, estimator=size, timeout=PATIENCE, max_waiting=10_000)


def size(info: RequestInfo) -> int:
    job: Job = info.scope["job"]
    return job.bytes


WAYS: dict[str, Wrap] = {
    "GPUAdmission": ours,
    "Semaphore(N-worst)": at_worst,
    "Semaphore(N-mean)": lambda app, asked: Within(app, asyncio.Semaphore(mean(asked))),
    "CapacityLimiter(N-mean)": lambda app, asked: Within(app, anyio.CapacityLimiter(mean(asked))),
    "nothing": lambda app, asked: app,
}


async def play(wrap: Wrap, asked: Sequence[Job]) -> None:
    """All of ``asked``, each at its time, until the last has ended."""
    app = wrap(Device(), asked)
    waiting: set[Job] = set()
    async with asyncio.TaskGroup() as clients:
        for job in asked:
            await asyncio.sleep(job.at - asyncio.get_running_loop().time())
            waiting = {
                other for other in waiting if other.wait > asyncio.get_running_loop().time() - other.at
            }
            job.beside_large = bool(waiting)
            if job.is_large:
                waiting.add(job)
            clients.create_task(client(app, job))


async def client(app: ASGIApp, job: Job) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE) as patience:
            await call(app, scope_of(job=job, patience=patience))


def row(load: float, name: str, asked: Sequence[Job]) -> list[str]:
    done = [job for job in asked if job.started < math.inf and not job.failed]
    used = sum(job.bytes * job.seconds for job in done) / (CAPACITY * SECONDS)
    large = [job for job in asked if job.is_large]
    waits = sorted(job.wait for job in asked if job.beside_large and not job.is_large)
    return [
        f"{load:g} x",
        name,
        f"{len(done) / SECONDS:.2f}",
        f"{used:.0%}",
        f"{sum(job.failed for job in asked) / len(asked):.1%}",
        f"{sum(job in done for job in large) / len(large):.0%}",
        f"{waits[len(waits) * 99 // 100]:.1f} s" if waits else "no large one waited",
    ]


def run() -> str:
    rows = []
    for load in LOADS:
        for name, wrap in WAYS.items():
            asked = jobs(load)
            virtual.run(play(wrap, asked))
            rows.append(row(load, name, asked))
    header = ["load", "let in by", "done a second", "of the device", "out of memory", "large ones done"]
    header.append("p99 wait of small ones while a large one waits")
    return table(f"Overload: {len(jobs(LOADS[0])):,} requests in half an hour", header, rows)
