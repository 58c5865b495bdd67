"""The same programs through one plain ledger and through many replicas: the same grants, at the same places.

Replicas lag behind each other at random, are made from snapshots, and die.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gpu_admission.budget.lanes import Lane
from gpu_admission.budget.ticket import State, Ticket
from gpu_admission.shared.memory import MemoryHub
from gpu_admission.shared.operations import Terms
from gpu_admission.testing.plainledger import Plain
from gpu_admission.testing.samegrants import figures, through_a_replica
from tests.shared.hub import Clock, Process

STEPS = 400
FEW, MANY = 6, 70

FAMILIES = {
    "one lane": Terms((100,)),
    "lanes": Terms(
        (100,),
        (Lane("a", guaranteed=0.4), Lane("b", limit=0.7, priority=2), Lane("c", max_waiting=2)),
        max_bypass=3,
        max_bypass_wait=2.0,
    ),
    "flows": Terms((100,), max_waiting_per_flow=3),
    "devices": Terms((60, 90), placement="round_robin", max_running=9),
}


class Program:
    """Processes on a hub where nothing arrives by itself, and the tickets that they asked for."""

    def __init__(self, terms: Terms, count: int) -> None:
        self.clock = Clock()
        self.terms = terms
        self.hub = MemoryHub(clock=self.clock, instant=False, knows_deaths=True)
        self.processes = [Process(self.hub, self.clock, f"p{n}", terms) for n in range(count)]
        self.tickets: list[tuple[int, Ticket]] = []
        self.dead: set[int] = set()

    def step(self, what: int, who: int, size: int, flows: bool) -> None:
        self.clock.now += size / 512
        index = who % len(self.processes)
        if index in self.dead:
            return
        process = self.processes[index]
        own = [ticket for owner, ticket in self.tickets if owner == index]
        match what % 16:
            case 0 | 1 | 2 | 3 | 4 | 5:
                flow = f"tenant{who // 8 % 4}" if flows and who % 3 else None
                lane = who // 4 % len(self.terms.lanes)
                self.tickets.append((index, process.ask(1 + size % 60, lane, flow)))
            case 6 | 7 | 8 if own:
                process.shared.release(own[size % len(own)])
            case 9 if own:
                process.shared.change(own[who % len(own)], size % 50)
            case 10:
                process.shared.allow(size % len(self.terms.capacities), ceiling=size if size % 2 else None)
            case 11 if size % 8 == 0:
                process.shared.resize([40 + size % 80] * len(self.terms.capacities))
            case 12 if size % 8 == 0:
                process.shared.refuse_all()
            case 13 if size % 32 == 0:
                process.shared.drain(closed=size % 64 == 0)
            case 14 if size % 64 == 0 and len(self.dead) + 1 < len(self.processes):
                self.kill(index)
            case _:
                process.log.deliver(1 + size % 9)

    def kill(self, index: int) -> None:
        self.dead.add(index)
        self.hub.dead.add(f"p{index}")
        living = next(p for n, p in enumerate(self.processes) if n not in self.dead)
        living.log.deliver()
        living.shared.pulse()

    def finish(self) -> None:
        for _ in range(3):
            for index, process in enumerate(self.processes):
                if index not in self.dead:
                    process.log.deliver()


@pytest.mark.parametrize("programs", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", FAMILIES)
def test_replicas_grant_what_one_ledger_grants_at_the_same_places(family: str, programs: int) -> None:
    terms = FAMILIES[family]

    @settings(
        max_examples=programs,
        database=None,
        derandomize=True,
        phases=[Phase.generate],  # to shrink a program of hundreds of steps takes minutes
        suppress_health_check=list(HealthCheck),
    )
    @given(st.integers(2, 5), st.binary(min_size=3 * STEPS, max_size=3 * STEPS))
    def run(count: int, steps: bytes) -> None:
        program = Program(terms, count)
        values = iter(steps)
        for what, who, size in zip(values, values, values, strict=True):
            program.step(what, who, size, family == "flows")
        program.finish()
        check(program)

    run()


def check(program: Program) -> None:
    """All replicas against the plain ledger: each grant, what is held, and what each owner sees."""
    entries = program.hub.entries
    plain = Plain(program.terms)
    expected = plain.take(entries)
    assert through_a_replica(entries, 0) == expected
    assert through_a_replica(entries, 1) == expected
    for index, process in enumerate(program.processes):
        if index not in program.dead:
            assert figures(process.shared.ledger) == figures(plain.ledger)
    for index, ticket in program.tickets:
        if index not in program.dead:
            owned = program.processes[index].shared
            twin = plain.tickets.get((f"p{index}.1", ticket.number))
            if twin is not None and ticket in owned._own:
                assert (ticket.state, ticket.bytes, ticket.device) == (twin.state, twin.bytes, twin.device)
    live = [t for t in plain.tickets.values() if t.state is State.GRANTED]
    assert plain.ledger.in_use == sum(ticket.bytes for ticket in live)
