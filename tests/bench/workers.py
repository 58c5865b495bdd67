"""Requests a second of four uvicorn workers: one budget on a folder beside a budget for each.

    python -m tests.bench.workers

Both servers run at once and are loaded in turn; what is told is the median of the rounds and their
ratio. Loopback only.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from gpu_admission import GPUAdmission
from tests.bench.server import echo, load
from tests.waiting import free_port, wait_for

WORKERS, ROUNDS = 4, 9

app = GPUAdmission(echo, capacity="1TiB", estimator=100, shared=os.environ.get("SHARED") or None)


@contextlib.contextmanager
def served(shared: str) -> Iterator[int]:
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "tests.bench.workers:app", f"--workers={WORKERS}"]
    environment = os.environ | {"SHARED": shared}
    with subprocess.Popen([*command, f"--port={port}", "--log-level=warning"], env=environment) as process:
        try:
            wait_for(port)
            load(port)
            yield port
        finally:
            process.terminate()


def main() -> None:
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as folder,
        served("") as own,
        served(f"{folder}/b") as one,
    ):
        rates: dict[int, list[float]] = {own: [], one: []}
        for _ in range(ROUNDS):
            for port, found in rates.items():
                found.append(load(port))
    apart, together = (statistics.median(rates[port]) for port in (own, one))
    ratios = [b / a for a, b in zip(rates[own], rates[one], strict=True)]
    print(f"four budgets {apart:8,.0f} requests/s")
    print(f"one budget   {together:8,.0f} requests/s ({statistics.median(ratios):.0%}, the median of rounds)")


if __name__ == "__main__":
    main()
