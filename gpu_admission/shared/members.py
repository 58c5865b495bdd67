"""Who takes part, what each of them holds, and when each is dead by the log's own time.

Owns the records of members, living and dead. What becomes of their tickets is the replica's
business.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from gpu_admission.budget.ticket import GRANTED, Ticket
from gpu_admission.shared.operations import Terms, Why

Own: TypeAlias = Callable[[str, int], Ticket | None]
"""This process's object for a ticket of this member and number, if it is its own."""


class Allowed(msgspec.Struct, array_like=True, frozen=True):
    """What one process's guards say of one device."""

    ceiling: int | None
    max_running: int | None
    why: Why | None = None
    until: float | None = None
    """When it may change by itself, by the log's time."""


class MemberDump(msgspec.Struct, array_like=True, frozen=True):
    """A member, written down; its tickets are in the ledger's dump."""

    name: str
    pid: int
    host: str
    joined: float
    last: float
    serial: int
    resident: tuple[int, ...]
    taken: tuple[int, ...]
    allowed: dict[int, Allowed]
    terms: Terms | None
    until: float | None
    devices: tuple[str, ...] = ()


class Member:
    """One process's part in the budget, from a join to its end."""

    __slots__ = (
        "allowed",
        "devices",
        "host",
        "joined",
        "lanes",
        "last",
        "name",
        "pid",
        "resident",
        "serial",
        "taken",
        "terms",
        "tickets",
        "until",
    )

    def __init__(self, name: str, pid: int, host: str, at: float) -> None:
        self.name = name
        self.pid = pid
        self.host = host
        self.joined = at
        self.last = at
        self.serial = 0
        self.tickets: dict[int, Ticket] = {}
        """Those that wait or hold bytes, by number."""
        self.resident: tuple[int, ...] = ()
        self.taken: tuple[int, ...] = ()
        """What its leases really take on each device, where that is measured."""
        self.allowed: dict[int, Allowed] = {}
        self.devices: tuple[str, ...] = ()
        """A key for each of the devices that it names."""
        self.terms: Terms | None = None
        """The settings that it came with; others may be in force."""
        self.lanes: tuple[int, ...] | None = None
        """For each of its own lanes the place in those in force; ``None``: the same."""
        self.until: float | None = None
        """Once dead: when its bytes go to others."""

    def dump(self) -> MemberDump:
        return MemberDump(
            self.name,
            self.pid,
            self.host,
            self.joined,
            self.last,
            self.serial,
            self.resident,
            self.taken,
            self.allowed,
            self.terms,
            self.until,
            self.devices,
        )

    @classmethod
    def load(cls, said: MemberDump) -> Member:
        member = cls(said.name, said.pid, said.host, said.joined)
        member.last, member.serial, member.resident = said.last, said.serial, said.resident
        member.taken, member.devices = said.taken, said.devices
        member.allowed, member.terms, member.until = dict(said.allowed), said.terms, said.until
        return member

    def follow(self, terms: Terms) -> None:
        """``terms`` are in force: find each of this member's own lanes among theirs, by name."""
        own = terms if self.terms is None else self.terms
        if [lane.name for lane in own.lanes] == [lane.name for lane in terms.lanes]:
            self.lanes = None
            return
        places = {lane.name: place for place, lane in enumerate(terms.lanes)}
        self.lanes = tuple(places.get(lane.name, 0) for lane in own.lanes)

    def in_order(self) -> list[Ticket]:
        """Its tickets by number: a replica made from a snapshot learned of them in another order."""
        return [self.tickets[number] for number in sorted(self.tickets)]

    def ticket(self, own: Own, lanes: int, number: int, size: int, lane: int, flow: bytes | None) -> Ticket:
        """A new ticket of its own, or the object that its process has for it."""
        ticket = own(self.name, number)
        if self.lanes is not None or lane >= lanes:
            lane = self.lane(lane, lanes)
        if ticket is None:
            ticket = Ticket(size, lane, flow)
        else:
            ticket.renew(size, lane, flow)
        ticket.owner, ticket.number = self.name, number
        return ticket

    def lane(self, own: int, lanes: int) -> int:
        """The place in the ``lanes`` in force of what this member calls its lane ``own``."""
        place = own if self.lanes is None else self.lanes[own] if own < len(self.lanes) else 0
        return place if place < lanes else 0


class Resized(NamedTuple):
    """``by`` set the capacities of all devices, in bytes."""

    by: Member
    before: Sequence[int]
    now: Sequence[int]

    @property
    def is_new(self) -> bool:
        return [*self.before] != [*self.now]


class Members:
    """The living, and the dead whose bytes still rest."""

    def __init__(self) -> None:
        self.living: dict[str, Member] = {}
        self.dead: dict[str, Member] = {}
        self.lost: dict[str, Member] = {}
        """Those who did not leave by themselves, until that was told."""
        self.resized: Resized | None = None
        """Who has set capacities for all, until that was told."""

    def __iter__(self) -> Iterator[Member]:
        yield from self.living.values()
        yield from self.dead.values()

    def gone(self, name: str, said_by: Member) -> Member | None:
        """The living ``name``, of whom ``said_by`` says that it is gone."""
        member = self.living.get(name)
        if member is not None and member is not said_by:
            self.lost[name] = member
        return member

    def news(self) -> tuple[Sequence[Member], Resized | None]:
        """Who was lost, and who has resized the budget, each told once."""
        told = list(self.lost.values()), self.resized
        self.lost.clear()
        self.resized = None
        return told

    def bury(self, member: Member) -> None:
        """It counts as dead, and its bytes rest."""
        self.dead[member.name] = self.lost[member.name] = member

    def held(self) -> list[Ticket]:
        """Every ticket that holds bytes, of the living and of the dead."""
        return [ticket for member in self for ticket in member.in_order() if ticket.state is GRANTED]

    def overdue(self, at: float, ttl: float) -> list[Member]:
        """The living that have been silent for longer than ``ttl``."""
        return [member for member in self.living.values() if at - member.last > ttl]

    def rested(self, at: float) -> list[Member]:
        """The dead that have rested for long enough."""
        return [m for m in self.dead.values() if m.until is not None and at >= m.until]

    def next_change(self, ttl: float) -> float:
        """The time before which nobody dies and no bytes come free."""
        dies = min((member.last for member in self.living.values()), default=math.inf) + ttl
        free = min((m.until for m in self.dead.values() if m.until is not None), default=math.inf)
        return min(dies, free)

    def allowed(self, device: int) -> Allowed:
        """The lowest that the guards of any living process say of ``device``."""
        said = [m.allowed[device] for m in self.living.values() if device in m.allowed]
        ceilings = [a.ceiling for a in said if a.ceiling is not None]
        most = [a.max_running for a in said if a.max_running is not None]
        return Allowed(min(ceilings, default=None), min(most, default=None))

    def closing(self, device: int, besides: str) -> Allowed | None:
        """What the guards of another living process than ``besides`` say, where they close ``device``."""
        said = (m.allowed.get(device) for m in self.living.values() if m.name != besides)
        return next((each for each in said if each is not None and each.ceiling == 0), None)

    def resident(self, device: int) -> int:
        """Bytes that all living processes hold on ``device`` besides their leases."""
        return sum(m.resident[device] for m in self.living.values() if device < len(m.resident))

    def taken(self, device: int, besides: str) -> int:
        """Bytes that the leases of all living processes but ``besides`` really take on ``device``."""
        others = (m.taken for m in self.living.values() if m.name != besides)
        return sum(taken[device] for taken in others if device < len(taken))
