"""Processes that are killed and stopped while they use one budget; an auditor that trusts none of them.

Each worker writes down when its work on some bytes began and ended; the auditor adds that up,
and reads the log by itself.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpu_admission.budget.ticket import State, Ticket
from gpu_admission.shared.ledger import SharedLedger
from gpu_admission.shared.opening import open_log
from gpu_admission.shared.operations import Terms
from tests.shared.redisserver import Server, needs_server

CAPACITY = 100
TTL = 3.0
ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "20"))
TERMS = Terms((CAPACITY,), max_waiting=1000, lease_ttl=TTL)
pytestmark = pytest.mark.slow

WORKER = """
import random, sys, threading, time
from gpu_admission.budget.ticket import Ticket
from gpu_admission.shared.ledger import SharedLedger
from gpu_admission.shared.opening import open_log
from gpu_admission.shared.operations import Terms
where, report, seed, *times = sys.argv[1:]
seed, (seconds, ttl) = int(seed), map(float, times)
chance, log = random.Random(seed), open(report, "a", buffering=1)
shared = SharedLedger(open_log(where, lease_ttl=ttl), Terms((100,), max_waiting=1000, lease_ttl=ttl))
shared.start()
end = time.monotonic() + seconds
def work():
    import asyncio
    asyncio.run(some())
async def some():
    import asyncio
    while time.monotonic() < end:
        ticket = Ticket(chance.choice((5, 20, 45, 80)))
        await shared.request(ticket)
        patience = time.monotonic() + 2
        while not ticket.started and time.monotonic() < patience:
            await asyncio.sleep(0.002)
            await shared.start_work(ticket)
        if ticket.started:
            name = f"{seed}-{ticket.number}"
            log.write(f"+ {time.clock_gettime(time.CLOCK_BOOTTIME)} {ticket.bytes} {name}\\n")
            await asyncio.sleep(chance.random() * 0.03)
            log.write(f"- {time.clock_gettime(time.CLOCK_BOOTTIME)} {ticket.bytes} {name}\\n")
        shared.release(ticket)
work()
shared.stop()
"""


class Workers:
    """Some processes on one budget, and what they say that they did."""

    def __init__(self, where: str, folder: Path, count: int, seconds: float) -> None:
        self.where, self.folder, self.seconds = where, folder, seconds
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        self.ended_at: dict[int, float] = {}
        """When a worker was killed: what it held until then is over.

        The moment before: others may hear of its death sooner than this process does.
        """
        for seed in range(count):
            self.add(seed)

    def add(self, seed: int) -> None:
        arguments = [self.where, str(self.folder / f"{seed}.txt"), str(seed), str(self.seconds), str(TTL)]
        self.running[seed] = subprocess.Popen([sys.executable, "-c", WORKER, *arguments])

    def kill(self, seed: int) -> None:
        process = self.running.pop(seed)
        self.ended_at[seed] = time.clock_gettime(time.CLOCK_BOOTTIME)
        process.kill()
        process.wait()

    def wait_for_work_of(self, seed: int) -> None:
        report = self.folder / f"{seed}.txt"
        end = time.monotonic() + 30
        while not report.exists() or report.stat().st_size < 500:
            assert time.monotonic() < end, "it did not begin"
            time.sleep(0.05)

    def stop_for(self, seed: int, seconds: float) -> None:
        self.running[seed].send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self.running[seed].send_signal(signal.SIGCONT)

    def finish(self) -> None:
        for process in self.running.values():
            assert process.wait(60) == 0

    def most_held(self, *, without: frozenset[int] = frozenset()) -> int:
        """Bytes worked on at once at the most, by what the workers wrote down."""
        changes: list[tuple[float, int, int]] = []
        for path in self.folder.glob("*.txt"):
            seed = int(path.stem)
            if seed in without:
                continue
            open_ones: dict[str, int] = {}
            for sign, at, size, name in (line.split() for line in path.read_text().splitlines()):
                change = int(size) if sign == "+" else -int(size)
                changes.append((float(at), 0 if change < 0 else 1, change))
                open_ones[name] = open_ones.get(name, 0) + change
            left = sum(open_ones.values())
            if left:
                changes.append((max(self.ended_at[seed], changes[-1][0]), 2, -left))
        held = most = 0
        for _, _, change in sorted(changes):
            held += change
            most = max(most, held)
        return most


@contextmanager
def budget(kind: str, tmp_path: Path) -> Iterator[str]:
    if kind == "folder":
        yield str(tmp_path / "gpu0")
        return
    server = Server(tmp_path / "redis")
    try:
        yield server.address
    finally:
        server.stop()


KINDS = ["folder", pytest.param("redis", marks=needs_server)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(ROUNDS))
def test_whoever_is_killed_the_budget_is_never_over_and_ends_at_zero(
    kind: str, seed: int, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    reports = tmp_path / "reports"
    reports.mkdir()
    with budget(kind, tmp_path) as where:
        auditor = SharedLedger(open_log(where, lease_ttl=TTL), TERMS)
        auditor.start()
        workers = Workers(where, reports, 4, 5.0)
        for extra in range(3):
            time.sleep(chance.uniform(0.7, 1.5))
            workers.kill(chance.choice(list(workers.running)))
            workers.add(10 + extra)
        workers.finish()
        wait_until_free(auditor, 2 * TTL + 2 if kind == "redis" else 1.0)
        auditor.stop()
    assert 0 < workers.most_held() <= CAPACITY


@pytest.mark.parametrize("kind", KINDS)
def test_a_process_that_stands_still_for_three_ttls_starts_nothing_that_was_given_away(
    kind: str, tmp_path: Path
) -> None:
    """What it ran already when it stopped may come on top: it is left out of the sum."""
    reports = tmp_path / "reports"
    reports.mkdir()
    with budget(kind, tmp_path) as where:
        auditor = SharedLedger(open_log(where, lease_ttl=TTL), TERMS)
        auditor.start()
        workers = Workers(where, reports, 3, 20.0)
        workers.wait_for_work_of(0)
        workers.stop_for(0, 3 * TTL)
        workers.finish()
        wait_until_free(auditor, 2 * TTL + 2)
        auditor.stop()
    assert workers.most_held(without=frozenset({0})) <= CAPACITY
    assert started_after_a_gap(reports / "0.txt", TTL), "it went on after it stood still"


def started_after_a_gap(report: Path, gap: float) -> bool:
    times = [float(line.split()[1]) for line in report.read_text().splitlines()]
    return any(after - before > gap for before, after in itertools.pairwise(times))


def wait_until_free(auditor: SharedLedger, seconds: float) -> None:
    """All bytes can be had, within ``seconds``."""
    ticket = Ticket(CAPACITY)
    auditor.ask(ticket)
    end = time.monotonic() + seconds
    while ticket.state is not State.GRANTED:
        assert time.monotonic() < end, f"not all came back: {auditor.members()}"
        time.sleep(0.01)
    auditor.release(ticket)
    while auditor.ledger.in_use:
        assert time.monotonic() < end + 2
        time.sleep(0.01)


def test_this_machine_has_a_clock_that_runs_in_sleep() -> None:
    assert time.clock_gettime(time.CLOCK_BOOTTIME) > 0
    assert os.name == "posix"
