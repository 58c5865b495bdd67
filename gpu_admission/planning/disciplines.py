"""The ways to let requests in that a replay compares. Each is a configuration of the real ledger.

Owns their names, the ledgers they make, and how lanes and tenants are assigned in a trace that
has none. A semaphore is a ledger that counts requests and never runs out of bytes.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from gpu_admission.budget.lanes import Lane
from gpu_admission.budget.ledger import Ledger
from gpu_admission.budget.recentsizes import SmallSizes
from gpu_admission.planning.trace import Trace

_ENDLESS = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The settings of an ``Admission`` that a replay knows, in bytes and seconds."""

    capacity: int
    timeout: float = 30.0
    max_waiting: int = 100
    max_running: int | None = None
    max_bypass: int = 32
    max_bypass_wait: float = 30.0
    margin: float = 0.0

    def ledger(
        self, *, lanes: Sequence[Lane] = (Lane("default"),), small: SmallSizes | None = None
    ) -> Ledger:
        return Ledger(
            [int(self.capacity * (1 - self.margin))],
            lanes=lanes,
            max_waiting=self.max_waiting,
            max_running=self.max_running,
            max_bypass=self.max_bypass,
            max_bypass_wait=self.max_bypass_wait,
            small=small,
        )


class Discipline(msgspec.Struct, frozen=True):
    """``ledger`` makes a new one for a trace; ``lanes`` and ``flows`` say whether it sorts by them."""

    ledger: Callable[[Setup, Trace], Ledger]
    says: str
    lanes: bool = False
    flows: bool = False


def disciplines() -> Mapping[str, Discipline]:
    """The disciplines by name, in the order of the table."""
    return {
        "default": Discipline(_default, "small requests may pass a head that does not fit, in bounds"),
        "fifo": Discipline(_fifo, "strict first in, first out: max_bypass=0"),
        "free": Discipline(_free, "whatever fits may pass the head"),
        "lanes": Discipline(_lanes, "the default, and a third guaranteed to the smaller half", lanes=True),
        "flows": Discipline(_default, "the default, fair between tenants", flows=True),
        "n-worst": Discipline(_worst, "a semaphore: as many as fit if all are the largest"),
        "n-mean": Discipline(_mean, "a semaphore: as many as fit if all are the mean"),
    }


def _default(setup: Setup, trace: Trace) -> Ledger:
    return setup.ledger()


def _fifo(setup: Setup, trace: Trace) -> Ledger:
    return replace(setup, max_bypass=0).ledger()


def _free(setup: Setup, trace: Trace) -> Ledger:
    free = replace(setup, max_bypass=_ENDLESS, max_bypass_wait=math.inf)
    return free.ledger(small=SmallSizes(part=1.0, share=1.0))


def _lanes(setup: Setup, trace: Trace) -> Ledger:
    return setup.ledger(lanes=(Lane("small", guaranteed=1 / 3), Lane("large")))


def _worst(setup: Setup, trace: Trace) -> Ledger:
    return _semaphore(setup, max(trace.sizes))


def _mean(setup: Setup, trace: Trace) -> Ledger:
    return _semaphore(setup, statistics.fmean(trace.sizes))


def _semaphore(setup: Setup, size: float) -> Ledger:
    permits = max(1, int(setup.capacity * (1 - setup.margin) // size))
    return replace(setup, capacity=_ENDLESS, max_bypass=0, max_running=permits).ledger()


def lanes_of(trace: Trace) -> Sequence[int]:
    """0 for the smaller half, 1 for the others."""
    middle = statistics.median_low(trace.sizes)
    return [int(size > middle) for size in trace.sizes]


def flows_of(trace: Trace, tenants: int, seed: int) -> Sequence[int]:
    """A tenant for each request, drawn at random: tenant 0 sends as much as all the others together."""
    weights = [max(1, tenants - 1)] + [1] * (tenants - 1)
    return random.Random(seed).choices(range(tenants), weights, k=len(trace))


def true_sizes(trace: Trace, error: float, seed: int) -> Sequence[int]:
    """What requests really take: their sizes times a normally distributed factor, 1 ± ``error``."""
    if not error:
        return trace.sizes
    gauss = random.Random(seed).gauss
    return [max(1, int(size * max(0.1, gauss(1.0, error)))) for size in trace.sizes]
