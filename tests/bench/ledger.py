"""What the ledger costs with many waiters: a release, a grant and a newcomer."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from gpu_admission.budget.ledger import Ledger
from gpu_admission.budget.ticket import Ticket
from tests.bench.sidebyside import medians, table

STEPS, ROUNDS = 5_000, 7


def steps(waiters: int) -> Callable[[], float]:
    def measure() -> float:
        draw = random.Random(1)
        ledger = Ledger([1000], max_waiting=10 * waiters + 10)
        running = list(ledger.request(Ticket(1000), 0.0))
        for _ in range(waiters):
            ledger.request(Ticket(draw.randint(100, 900)), 0.0)
        sizes = [draw.randint(100, 900) for _ in range(STEPS)]
        start = time.perf_counter()
        for step, size in enumerate(sizes):
            now = step / 1000
            running += ledger.release(running.pop(0), now)
            running += ledger.request(Ticket(size), now)
        return (time.perf_counter() - start) / STEPS

    return measure


def run() -> str:
    measured = medians({f"{n:,} waiting": steps(n) for n in (100, 1_000, 10_000, 100_000)}, ROUNDS)
    base = measured["100 waiting"]
    rows = [[name, f"{value * 1e6:.1f}", f"{value / base:.2f}"] for name, value in measured.items()]
    return table("Ledger: one release and one arrival", ["queue", "µs", "100 waiting = 1"], rows)
