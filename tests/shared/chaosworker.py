"""A process that works under a shared budget and writes down what it does. No test lives here.

``FLAWS`` plants in it what a budget must never do, so that the auditor can be shown to find it.
Its clocks can be moved: ``SIGUSR1`` puts them 300 s ahead, ``SIGUSR2`` back by as much.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import random
import signal
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, NamedTuple, TextIO

import msgspec

from gpu_admission import Admission, Rejected
from gpu_admission.budget.ledger import Ledger
from gpu_admission.shared import folder, membership, presence, redislog, replica
from gpu_admission.shared.ledger import SharedLedger
from gpu_admission.shared.operations import Gone, Open, Terms, encode
from gpu_admission.shared.untold import Untold

CAPACITY = 100
SIZES = (5, 20, 45, 80)
LEAP = 300.0
_host_seconds = time.clock_gettime


class Order(NamedTuple):
    """What a worker is told."""

    where: str
    report: str
    seed: int
    ttl: float
    tasks: int = 2
    flaw: str = ""
    at_most: float = 0.03
    """Seconds that a piece of work takes at the most."""


def main(order: Order) -> None:
    """Work until ``SIGTERM`` comes, then leave."""
    logging.getLogger("gpu_admission").setLevel(logging.CRITICAL)
    _move_clocks()
    if order.flaw:
        FLAWS[order.flaw]()
    asyncio.run(_Worker(order).run())


class _Worker:
    def __init__(self, order: Order) -> None:
        self.order = order
        self.chance = random.Random(order.seed)
        self.numbers = count()
        self.is_over = asyncio.Event()
        self.admission = Admission(
            shared=order.where,
            capacity=CAPACITY,
            estimator=1,
            lease_ttl=order.ttl,
            timeout=2.0,
            max_waiting=1000,
        )

    async def run(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.is_over.set)
        await self.admission.startup.begin()
        with open(self.order.report, "a", buffering=1) as report:  # noqa: ASYNC230
            spoiler = SPOILERS.get(self.order.flaw)
            tasks = [self.work(report) for _ in range(self.order.tasks)]
            await asyncio.gather(*tasks, *([] if spoiler is None else [spoiler(self)]))
        await self.admission.aclose()

    async def work(self, report: TextIO) -> None:
        while not self.is_over.is_set():
            try:
                await self.one(report, self.chance.choice(SIZES))
            except Rejected:
                await asyncio.sleep(0.01)

    async def one(self, report: TextIO, size: int) -> None:
        name = f"{self.order.seed}-{next(self.numbers)}"
        async with self.admission.lease(size) as lease:
            if self.order.flaw == "given back too early":
                lease.release()
            self._say(report, "+", size, name)
            await asyncio.sleep(self.chance.random() * self.order.at_most)
            self._say(report, "-", size, name)

    def _say(self, report: TextIO, sign: str, size: int, name: str) -> None:
        report.write(f"{sign} {_host_seconds(time.CLOCK_BOOTTIME)} {size} {name}\n")

    @property
    def shared(self) -> SharedLedger:
        shared: SharedLedger = self.admission.locked._shared  # type: ignore[attr-defined]
        return shared


def _move_clocks() -> None:
    """Have the process's own clock and its wall clock moved by signals; the host's is one for all."""
    off = [0.0]
    wall, boot = time.time, time.clock_gettime
    time.time = lambda: wall() + off[0]
    defaults: Any = SharedLedger.__init__.__kwdefaults__
    defaults["clock"] = lambda: boot(time.CLOCK_BOOTTIME) + off[0]
    for number, step in ((signal.SIGUSR1, LEAP), (signal.SIGUSR2, -LEAP)):
        signal.signal(number, lambda *_, step=step: off.__setitem__(0, off[0] + step))


# what must never be done


def _raise_the_limit() -> None:
    _replace(replica, "ledger_of", lambda real, terms: real(_roomier(terms)))


def _replace(owner: Any, name: str, function: Callable[..., Any]) -> None:
    """``function`` gets what it replaces, and what that would have been called with."""
    setattr(owner, name, partial(function, getattr(owner, name)))


def _roomier(terms: Terms) -> Terms:
    return msgspec.structs.replace(terms, capacities=tuple(3 * size for size in terms.capacities))


def _grant_twice() -> None:
    """What waits is granted with what ends next, whether it fits or not."""
    real = Ledger.release

    def release(self: Ledger, ticket: Any, now: float) -> Any:
        granted = list(real(self, ticket, now))
        waiting = [t for lane in self.lanes for t in lane.tickets()][:1]
        for each in waiting:
            real(self, each, now)
            self.force(each, now, 0)
        return [*granted, *waiting]

    Ledger.release = release  # type: ignore[method-assign]


def _claim_nothing() -> None:
    """Who joins again does not say what it works on."""
    _replace(membership, "Join", lambda real, *said: real(*said[:5]))


def _look_dead() -> None:
    """Its lock is let go of while it lives."""
    real = presence.Presence.join

    def join(self: presence.Presence) -> None:
        real(self)
        fcntl.flock(self.lifeline, fcntl.LOCK_UN)

    presence.Presence.join = join  # type: ignore[method-assign]


def trust_a_lost_log(replace: Callable[..., object]) -> None:
    """It grants at once, before anyone has said what is held."""
    for module in (folder, redislog):
        replace(module, "Open", partial(_at_once, Open))


def _at_once(real: Any, settle: float, *more: Any, **named: Any) -> Any:
    return real(0.0, *more, **named)


def _never_say_ends() -> None:
    Untold.add = lambda self, ticket: None  # type: ignore[method-assign]


async def _evict(worker: _Worker) -> None:
    """Says again and again that the others have died, for certain."""
    while not worker.is_over.is_set():
        await asyncio.sleep(0.1)
        for name in list(worker.shared.replica.members.living):
            if name != worker.shared.member:
                worker.shared.log.append(encode("", 0, Gone(name, certain=True)))


SPOILERS: dict[str, Callable[[_Worker], Any]] = {"evicts the living": _evict}
FLAWS: dict[str, Callable[[], None]] = {
    "raises the limit": _raise_the_limit,
    "grants twice": _grant_twice,
    "given back too early": lambda: None,
    "evicts the living": lambda: None,
    "looks dead": _look_dead,
    "claims nothing": _claim_nothing,
    "a lost log is empty": lambda: trust_a_lost_log(setattr),
    "never says ends": _never_say_ends,
}
"""What is planted, by its name."""
