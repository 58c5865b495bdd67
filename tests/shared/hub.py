"""Processes on a log in memory, driven by hand. No test lives here."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_admission.budget.ticket import GRANTED, Ticket
from gpu_admission.shared.ledger import SharedLedger
from gpu_admission.shared.memory import MemoryHub, MemoryLog
from gpu_admission.shared.operations import Terms

TERMS = Terms((100,), lease_ttl=10.0)


class Clock:
    """Seconds by hand."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Process:
    """One process: its ledger, and what it was woken with."""

    def __init__(self, hub: MemoryHub, clock: Clock, name: str, terms: Terms = TERMS, **more: object) -> None:
        self.log = MemoryLog(hub)
        self.woken: list[Ticket] = []
        self.shared = SharedLedger(
            self.log,
            terms,
            woken=self.woken.extend,
            clock=clock,
            name=name,
            **more,  # type: ignore[arg-type]
        )
        self.shared.start(pulse=False)

    def ask(self, size: int, lane: int = 0, flow: object = None) -> Ticket:
        ticket = Ticket(size, lane, flow)
        self.shared.ask(ticket)
        return ticket

    @property
    def held(self) -> int:
        return self.shared.ledger.in_use


class World:
    """Some processes on one hub with one clock."""

    def __init__(self, count: int = 2, terms: Terms = TERMS, **hub: object) -> None:
        self.clock = Clock()
        self.hub = MemoryHub(clock=self.clock, **hub)  # type: ignore[arg-type]
        self.processes = [Process(self.hub, self.clock, f"p{n}", terms) for n in range(count)]

    def __getitem__(self, index: int) -> Process:
        return self.processes[index]

    def catch_up(self) -> None:
        for _ in range(3):  # what one learns may make it say something
            for process in self.processes:
                process.log.catch_up()

    def pass_time(self, seconds: float, living: Sequence[Process] | None = None) -> None:
        """``living`` beat all the while."""
        for _ in range(round(seconds * 2)):
            self.clock.now += 0.5
            for process in self.processes if living is None else living:
                process.shared.pulse()


def granted(ticket: Ticket) -> bool:
    return ticket.state is GRANTED
