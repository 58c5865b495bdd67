"""Ten thousand requests wait in four real processes, and nothing changes: what that costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.shared.redisserver import Server, needs_server

PROCESSES, EACH = 4, 2500
SECONDS = 5.0
FIGURES = os.environ.get("CHAOS_FIGURES")
pytestmark = pytest.mark.slow

WAITS = """
import asyncio, sys
from gpu_admission import Admission
where, count, everyone, holds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "holds"
async def main():
    admission = Admission(
        capacity=100, estimator=1, shared=where, max_waiting=20_000, timeout=600.0, lease_ttl=10.0
    )
    async def wait():
        async with admission.lease(100):
            await asyncio.sleep(600)
    tasks = [asyncio.create_task(wait())] if holds else []
    while holds and not admission.snapshot().in_use:
        await asyncio.sleep(0.01)
    tasks += [asyncio.create_task(wait()) for _ in range(count)]
    while admission.snapshot().waiting < count:
        await asyncio.sleep(0.05)
    print("waits", flush=True)
    while admission.snapshot().waiting < everyone:
        await asyncio.sleep(0.05)
    print("knows", flush=True)
    await asyncio.gather(*tasks)
asyncio.run(main())
"""


@contextmanager
def waiting(where: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes with so many that wait in each, behind one that holds everything; each knows of all."""
    processes: list[subprocess.Popen[str]] = []
    try:
        for number in range(PROCESSES):
            does = "waits" if number else "holds"
            command = [sys.executable, "-c", WAITS, where, str(EACH), str(PROCESSES * EACH), does]
            processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            assert said_by(processes[-1]) == "waits\n"
        assert [said_by(process) for process in processes] == ["knows\n"] * PROCESSES
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def said_by(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def cpu_and_wake_ups(process: subprocess.Popen[str]) -> tuple[float, int]:
    """CPU seconds so far, and how often a thread of it has begun to wait."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    waits = 0
    for thread in Path(f"/proc/{process.pid}/task").iterdir():
        said = (thread / "status").read_text()
        waits += int(said.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return cpu, waits


def spent(processes: list[subprocess.Popen[str]], seconds: float) -> tuple[float, float]:
    """The share of one core, and wake-ups a second, of all together."""
    before = [cpu_and_wake_ups(process) for process in processes]
    time.sleep(seconds)
    after = [cpu_and_wake_ups(process) for process in processes]
    cpu = sum(end[0] - start[0] for start, end in zip(before, after, strict=True))
    woken = sum(end[1] - start[1] for start, end in zip(before, after, strict=True))
    return cpu / seconds, woken / seconds


def note(**figures: object) -> None:
    if FIGURES:
        with open(FIGURES, "a") as file:
            file.write(json.dumps(figures) + "\n")


def calls(server: Server) -> dict[str, int]:
    said = server.client().info("commandstats")
    return {name: stats["calls"] for name, stats in said.items() if name not in ("cmdstat_info",)}


@needs_server
def test_a_server_gets_few_commands(tmp_path: Path) -> None:
    server = Server(tmp_path / "redis")
    try:
        with waiting(server.address) as processes:
            before = calls(server)
            cpu, woken = spent(processes, SECONDS)
            after = calls(server)
    finally:
        server.stop()
    each = {name: count - before.get(name, 0) for name, count in after.items()}
    rate = sum(each.values()) / SECONDS
    note(kind="redis", commands=rate, each={name: n for name, n in each.items() if n}, cpu=cpu, woken=woken)
    assert rate < 20
    assert cpu < 0.2


def test_a_folder_costs_little_cpu_and_few_wake_ups(tmp_path: Path) -> None:
    with waiting(str(tmp_path / "gpu0")) as processes:
        cpu, woken = spent(processes, SECONDS)
    note(kind="folder", cpu=cpu, woken=woken)
    assert cpu < 0.2
    assert woken < 200
