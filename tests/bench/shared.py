"""What a grant costs on a shared budget: a folder alone, with four processes, and Redis on loopback.

    python -m tests.bench shared

Each is a median beside what it is compared with, in one run: a grant of a plain ledger, one
``XADD`` round trip of redis-py's asyncio client.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_admission.budget.ledger import Ledger
from gpu_admission.budget.ticket import GRANTED, Ticket
from gpu_admission.shared.folder import FolderLog
from gpu_admission.shared.ledger import SharedLedger
from gpu_admission.shared.operations import Terms
from gpu_admission.shared.redisaddress import parse
from gpu_admission.shared.redislog import RedisLog
from tests.shared.redisserver import HAS_SERVER, Server

TERMS = Terms((1 << 40,))
ROUNDS = 20_000


def median(once: Callable[[], None], rounds: int = ROUNDS) -> float:
    """Microseconds."""
    spent = []
    for _ in range(rounds):
        started = time.perf_counter()
        once()
        spent.append(time.perf_counter() - started)
    return statistics.median(spent) * 1e6


def grant(shared: SharedLedger, spent: list[float]) -> None:
    ticket = Ticket(100)
    started = time.perf_counter()
    shared.ask(ticket)
    spent.append(time.perf_counter() - started)
    assert ticket.state is GRANTED
    shared.release(ticket)


def one_of_several(folder: str, pause: float, begin: Any, answers: Any) -> None:
    shared = SharedLedger(FolderLog(folder), TERMS)
    shared.start()
    begin.wait()
    spent: list[float] = []
    for _ in range(ROUNDS // 4):
        grant(shared, spent)
        time.sleep(pause)
    answers.put(statistics.median(spent) * 1e6)
    shared.stop()


def on_a_folder(processes: int) -> float:
    context = multiprocessing.get_context("spawn")
    begin, answers = context.Barrier(processes), context.Queue()
    pause = 0.0 if processes == 1 else 0.0005
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        workers = [
            context.Process(target=one_of_several, args=(folder, pause, begin, answers))
            for _ in range(processes)
        ]
        for worker in workers:
            worker.start()
        medians: list[float] = [answers.get(timeout=300) for _ in workers]
        for worker in workers:
            worker.join()
    return statistics.median(medians)


def until_ready(newcomer: SharedLedger) -> float:
    """Milliseconds."""
    started = time.perf_counter()
    newcomer.start()
    ready = (time.perf_counter() - started) * 1e3
    newcomer.stop()
    return ready


def a_million_operations() -> tuple[int, list[float]]:
    """The log's largest size, and the milliseconds in which newcomers are ready, wherever in it they come."""
    largest, ready = 0, []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        shared = SharedLedger(FolderLog(folder), TERMS)
        shared.start()
        spent: list[float] = []
        for number in range(500_000):
            grant(shared, spent)
            if number % 10_000 == 0:
                largest = max(largest, sum(path.stat().st_size for path in Path(folder).glob("log-*")))
                ready.append(until_ready(SharedLedger(FolderLog(folder), TERMS)))
        shared.stop()
    return largest, ready


async def on_redis(address: str) -> tuple[float, float, list[float]]:
    """Medians of one ``XADD`` and of one grant, and the milliseconds in which newcomers are ready."""
    import redis.asyncio

    shared = SharedLedger(RedisLog(parse(address), settle=0.0), TERMS)
    shared.start()
    added, granted, ready = [], [], []
    async with redis.asyncio.Redis.from_url(parse(address).url) as client:
        for number in range(4000):
            started = time.perf_counter()
            await client.xadd("bench", {"d": b"x" * 40})
            added.append(time.perf_counter() - started)
            ticket = Ticket(100)
            started = time.perf_counter()
            await shared.request(ticket)
            granted.append(time.perf_counter() - started)
            shared.release(ticket)
            await asyncio.sleep(0.001)
            if number % 250 == 0:
                ready.append(until_ready(SharedLedger(RedisLog(parse(address)), TERMS)))
    shared.stop()
    return statistics.median(added) * 1e6, statistics.median(granted) * 1e6, ready


def run() -> str:
    ledger = Ledger([1 << 40])
    lines = [
        f"plain ledger        {median(lambda: void(ledger.request(Ticket(100), 1.0))):8.1f} us a grant",
        f"folder, alone       {on_a_folder(1):8.1f} us",
        f"folder, four        {on_a_folder(4):8.1f} us",
    ]
    if HAS_SERVER:
        server = Server(Path(tempfile.mkdtemp()))
        added, granted, ready = asyncio.run(on_redis(server.address))
        server.stop()
        lines += [
            f"redis, one XADD     {added:8.1f} us",
            f"redis, a grant      {granted:8.1f} us ({granted / added:.2f} x)",
            f"redis, a newcomer   {in_all(ready)}",
        ]
    largest, ready = a_million_operations()
    return "\n".join(
        [
            *lines,
            f"folder, a newcomer  {in_all(ready)}",
            f"10^6 operations: log at most {largest / 1e6:.1f} MB",
        ]
    )


def in_all(ready: list[float]) -> str:
    return f"{statistics.median(ready):8.1f} ms until it is ready, at most {max(ready):.1f}"


def void(_: object) -> None:
    """Takes what a lambda returns."""
