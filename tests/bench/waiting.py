"""Memory of one waiting request, with ten thousand of them in the queue.

``python -m tests.bench.waiting NAME`` is one measured process: it prints the bytes that each of its
waiting requests takes, their tasks and scopes included. All of them send the same body object, so
bodies count nothing. What an app that itself waits takes is what a server pays anyway.
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpu_admission import GPUAdmission
from tests.bench.asgi import CHAT, scope_of
from tests.bench.contenders import Within
from tests.bench.sidebyside import table

WAITING = 10_000


def waits_itself() -> ASGIApp:
    return asleep


def on_semaphore() -> ASGIApp:
    return Within(asleep, asyncio.Semaphore(1))


def ours(**settings: Any) -> ASGIApp:
    options: dict[str, Any] = {"timeout": 3600, "max_waiting": 2 * WAITING, **settings}
    return GPUAdmission(asleep, capacity=1, estimator=lambda info: min(1, len(info.body)), **options)


APPS: dict[str, Callable[[], ASGIApp]] = {
    "an app that waits by itself": waits_itself,
    "asyncio.Semaphore": on_semaphore,
    "GPUAdmission": ours,
    "GPUAdmission, a flow for each request": lambda: ours(flow=lambda info: id(info)),
}


async def asleep(scope: Scope, receive: Receive, send: Send) -> None:
    while (await receive()).get("more_body", False):
        pass
    await asyncio.sleep(3600)


async def measured(app: ASGIApp) -> float:
    """Resident bytes of each waiting request; one runs, and none of them ends."""
    tasks = [asyncio.ensure_future(one(app))]
    await asyncio.sleep(0.01)
    gc.collect()
    before = resident()
    tasks += [asyncio.ensure_future(one(app)) for _ in range(WAITING)]
    for _ in range(20):
        await asyncio.sleep(0.01)
    gc.collect()
    after = resident()
    assert not any(task.done() for task in tasks)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    return (after - before) / WAITING


async def one(app: ASGIApp) -> None:
    messages: list[Message] = [{"type": "http.request", "body": CHAT, "more_body": False}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await asyncio.sleep(3600)
        raise AssertionError("nobody waits that long")

    async def send(message: Message) -> None:
        raise AssertionError("nothing is sent while it waits")

    await app(scope_of(), receive, send)


def resident() -> int:
    """Bytes of this process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def run() -> str:
    if not Path("/proc/self/statm").exists():
        return "\nMemory of waiting requests: not measured, there is no /proc"
    found = {name: _in_a_process(name) for name in APPS}
    base = found["an app that waits by itself"]
    rows = [[name, f"{size / 1000:.1f}", f"{(size - base) / 1000:.1f}"] for name, size in found.items()]
    title = f"Memory of each of {WAITING:,} waiting requests, beside its body"
    return table(title, ["waiting for", "kB in all", "kB more than the app"], rows)


def _in_a_process(name: str) -> float:
    command = [sys.executable, "-m", "tests.bench.waiting", name]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


if __name__ == "__main__":
    print(asyncio.run(measured(APPS[sys.argv[1]]())))
