"""Requests a second of four uvicorn workers: one budget on a folder beside a budget for each.

    python -m tests.bench workers

Both servers run at once and are loaded in turn; what is told is the median of the rounds and their
ratio. Beside the rates stands the processor time that all workers took for each request: the kernel gives
the connections to one, two or three of the workers as it likes, so the rates leap. Loopback only.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gpu_admission import GPUAdmission
from tests.bench.server import SECONDS, Load, echo, load, processor_seconds
from tests.waiting import free_port, wait_for

WORKERS, ROUNDS = 4, 9

app = GPUAdmission(echo, capacity="1TiB", estimator=100, shared=os.environ.get("SHARED") or None)


@contextlib.contextmanager
def served(shared: str) -> Iterator[tuple[int, int]]:
    """The server's process, and its port."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "tests.bench.workers:app", f"--workers={WORKERS}"]
    environment = os.environ | {"SHARED": shared}
    with subprocess.Popen([*command, f"--port={port}", "--log-level=warning"], env=environment) as process:
        try:
            wait_for(port)
            load(port)
            yield process.pid, port
        finally:
            process.terminate()


def loaded(server: int, port: int) -> Load:
    before = _of_workers(server)
    rate = load(port)
    return Load(rate, (_of_workers(server) - before) / (rate * SECONDS))


def _of_workers(server: int) -> float:
    """Seconds of processor that its children have used."""
    children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    return sum(processor_seconds(int(child)) for child in children)


def run() -> str:
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as folder,
        served("") as own,
        served(f"{folder}/b") as one,
    ):
        found: dict[tuple[int, int], list[Load]] = {own: [], one: []}
        for _ in range(ROUNDS):
            for server, rounds in found.items():
                rounds.append(loaded(*server))
    lines = []
    for name, server in {"four budgets": own, "one budget": one}.items():
        rate, cpu = map(statistics.median, zip(*found[server], strict=True))
        lines.append(f"{name:12} {rate:8,.0f} requests/s, {cpu * 1e6:5.1f} us of processor a request")
    pairs = list(zip(found[own], found[one], strict=True))
    rates = statistics.median(b.rate / a.rate for a, b in pairs)
    costs = statistics.median(a.cpu / b.cpu for a, b in pairs)
    lines.append(
        f"one budget keeps {rates:.0%} of the rate, {costs:.0%} by processor time (medians of rounds)"
    )
    return "\n".join(lines)
