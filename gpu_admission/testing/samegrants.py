"""Many processes on one log grant what one plain ledger grants, at the same places: a check for any log.

Owns the random programs and the comparison. ``plainledger`` says what is expected.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from gpu_admission.budget.lanes import Lane
from gpu_admission.budget.ledger import Ledger
from gpu_admission.budget.ticket import GRANTED, Ticket
from gpu_admission.shared.dump import dump, load
from gpu_admission.shared.ledger import SharedLedger
from gpu_admission.shared.operations import Terms
from gpu_admission.shared.protocol import Entry, Log
from gpu_admission.shared.replica import Replica
from gpu_admission.testing.logs import Way
from gpu_admission.testing.plainledger import Plain, Said

LANES = (Lane("a", guaranteed=0.4), Lane("b", limit=0.7, priority=2), Lane("c", max_waiting=2))
_WITHIN = 10.0


def check_same_grants(
    make: Callable[[], Log],
    *,
    steps: int = 1000,
    processes: int = 3,
    seed: int = 0,
    lanes: Sequence[Lane] = LANES,
) -> None:
    """Random asks, ends, growth, ceilings and resizes in some processes: all grant what one ledger does.

    ``make`` returns a new log object each time, all for the same new place. Raises
    ``AssertionError`` with a sentence.
    """
    terms = Terms((100,), tuple(lanes), max_bypass=3, max_bypass_wait=2.0, lease_ttl=600.0)
    auditor = Way(make())
    members = [SharedLedger(make(), terms) for _ in range(processes)]
    for member in members:
        member.start(pulse=False)
    try:
        until_equal(auditor, members)
        program = Program(members, random.Random(seed))
        for step in range(steps):
            program.step()
            if step % 100 == 0:
                auditor.log.catch_up()  # a log that is cut behind its readers no longer has all entries
        until_equal(auditor, members)
        compare(auditor.heard.entries, terms, members, program)
    finally:
        for member in members:
            for ticket in member.own:
                member.release(ticket)
            member.stop()
        auditor.log.stop()


class Program:
    """Random steps of some processes, and the tickets that they asked for."""

    def __init__(self, members: Sequence[SharedLedger], chance: random.Random) -> None:
        self._members = members
        self._chance = chance
        self.tickets: list[tuple[SharedLedger, Ticket]] = []

    def step(self) -> None:
        chance = self._chance
        member = chance.choice(self._members)
        own = [ticket for owner, ticket in self.tickets[-40:] if owner is member]
        what = chance.randrange(16)
        if what < 6:
            self._ask(member)
        elif what < 10 and own:
            member.release(chance.choice(own))
        elif what == 10 and own:
            member.change(chance.choice(own), chance.randrange(50))
        elif what == 11:
            member.allow(0, ceiling=chance.choice((None, 0, 40, 80)))
        elif what == 12 and not chance.randrange(4):
            member.resize([chance.randrange(40, 140)])
        elif what == 13 and not chance.randrange(8):
            member.refuse_all()
        else:
            member.catch_up()

    def _ask(self, member: SharedLedger) -> None:
        chance = self._chance
        flow = chance.choice((None, "one", "two"))
        ticket = Ticket(chance.randint(1, 60), chance.randrange(len(member.terms.lanes)), flow)
        member.ask(ticket)
        self.tickets.append((member, ticket))


def until_equal(auditor: Way, members: Sequence[SharedLedger]) -> None:
    """Have everyone read everything that was said."""
    end = time.monotonic() + _WITHIN
    while True:
        for member in members:
            member.pulse()
        auditor.log.catch_up()
        states = [figures(member.ledger) for member in members]  # which says what has ended
        is_read = not any(member.unheard for member in members)
        if is_read and states.count(states[0]) == len(states):
            everything = serials(whole(auditor.heard.entries))
            if all(member.is_in and serials(member.replica) == everything for member in members):
                return
        assert time.monotonic() < end, f"processes that have read the same must agree, not {states}"
        time.sleep(0.005)


def whole(entries: Sequence[Entry]) -> Replica:
    """A replica that has read ``entries``."""
    replica = Replica()
    for entry in entries:
        replica.apply(*entry)
    return replica


def serials(replica: Replica) -> dict[str, int]:
    """Which entry of each member was the last that ``replica`` has read. Times don't tell: many share one."""
    return {name: member.serial for name, member in replica.members.living.items()}


def compare(
    entries: Sequence[Entry], terms: Terms, members: Sequence[SharedLedger], program: Program
) -> None:
    """Replicas against the plain ledger: each grant at its place, and what each owner sees."""
    plain = Plain(terms)
    expected = plain.take(entries)
    for seed in (0, 1):
        assert through_a_replica(entries, seed) == expected, "each entry grants what one ledger grants by it"
    for member in members:
        assert figures(member.ledger) == figures(plain.ledger), "each process holds what one ledger holds"
    for owner, ticket in program.tickets:
        twin = plain.tickets.get((owner.member, ticket.number))
        if twin is not None and ticket in owner.own:
            assert (ticket.state, ticket.bytes) == (twin.state, twin.bytes), "an owner sees its own grants"
    held = sum(ticket.bytes for ticket in plain.tickets.values() if ticket.state is GRANTED)
    assert plain.ledger.in_use == held, "what is held is the sum of what was granted"


def through_a_replica(entries: Sequence[Entry], seed: int) -> list[Said]:
    """What each entry granted or refused; with a ``seed``, in replicas made anew from snapshots."""
    replica = Replica()
    said: list[Said] = []
    chance = random.Random(seed)
    for entry in entries:
        if seed and chance.random() < 0.05:
            written = dump(replica)
            replica = Replica()
            load(replica, written)
        changed = replica.apply(*entry)
        said.append([(ticket.owner, ticket.number, ticket.state.value) for ticket in changed])
    return said


def figures(ledger: Ledger) -> list[Any]:
    """What equal ledgers have in common."""
    accounts = [(a.in_use, a.running, a.limit) for a in ledger.accounts]
    lanes = [(lane.in_use, lane.waiting, lane.waiting_bytes, lane.hold) for lane in ledger.lanes]
    return [accounts, lanes, ledger.in_use, ledger.running, ledger.waiting, ledger.grants, ledger.asked]
