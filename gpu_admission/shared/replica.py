"""One process's copy of the shared ledger: a state machine over the entries of the log.

Pure: no clock, no I/O, no thread. Every replica that has applied the same entries is in the
same state, so each decides alone, and alike, who starts, who is dead and whose bytes are
free. Appending, waking and waiting must not be put here.

The rules, in the order in which ``apply`` follows them at each entry:

1. Time is the entry's. By it a log that began anew has settled or not, a member that was
   silent for ``lease_ttl`` is dead, and the bytes of a dead one have rested for half of it.
2. An entry from a non-member counts only if it joins. An entry that came twice is left out. A
   hole in a member's own numbering means that some of what it said is lost: it is dead from here
   on, and will claim what it holds.
3. The operations of an entry apply together, at its time.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpu_admission.budget.ledger import Ledger
from gpu_admission.budget.ticket import GRANTED, REFUSED, Ticket
from gpu_admission.shared.members import Allowed, Member, Members, Resized
from gpu_admission.shared.operations import (
    NAME,
    RULES,
    Adopt,
    Allow,
    Ask,
    Beat,
    Change,
    Drain,
    End,
    Gone,
    Held,
    Join,
    Message,
    Open,
    Refuse,
    Resize,
    Terms,
    decode,
    is_short,
    rules_of,
    unpack_short,
)
from gpu_admission.shared.terms import agree, ledger_of, take_terms

_NOTHING: tuple[Ticket, ...] = ()
_OPERATOR = Member("", 0, "", 0.0)


class Replica:
    """Applies entries; ``own(member, number)`` gives this process's ticket objects for its own asks.

    ``hear(told)`` is called with what the estimators of members have learned.
    """

    def __init__(
        self,
        own: Callable[[str, int], Ticket | None] = lambda member, number: None,
        hear: Callable[[bytes], object] = len,
    ) -> None:
        self.own, self._hear = own, hear
        self.author = ""
        """Who said the last entry, if it could be read, and its ``serial``."""
        self.serial = 0
        self.changes = 0
        """Grows whenever others take part, or other settings are in force."""
        self._begin()
        self._apply: dict[type, Callable[[Any, Any, float], Sequence[Ticket]]] = {
            Ask: self._ask,
            End: self._end,
            Change: self._change,
            Beat: self._beat,
            Allow: self._allow,
            Gone: self._gone,
            Refuse: self._refuse,
            Drain: self._drain,
            Adopt: self._adopt,
            Resize: self._resize,
        }

    def _begin(self) -> None:
        self.at = -math.inf
        """Time of the last entry, in the log's seconds."""
        self.epoch = 0
        """How often the log began anew."""
        self.expires = False
        self.settles: float | None = None
        """When granting begins, while the log has just begun."""
        self.terms: Terms | None = None
        """The settings in force."""
        self.since: Mapping[str, float] = {}
        """When each of them that was given was first put into the log."""
        self.members = Members()
        self.ledger: Ledger | None = None
        self.other_rules: int | None = None
        """A version of the rules that somebody else follows in this log."""
        self._wait_until = math.inf

    def apply(self, at: float, data: bytes) -> Sequence[Ticket]:
        """Take in one entry. Returns the tickets of all processes that it granted or refused."""
        self._stamp = at
        at = self.at = at if at > self.at else self.at
        changed = self._let_pass(at) if at >= self._wait_until else _NOTHING
        if is_short(data):
            return self._take_short(data, at, changed)
        message = decode(data)
        if message is None or message.rules != RULES:
            said = rules_of(data)
            self.author = ""
            if said != RULES:
                self.other_rules = said or self.other_rules
            return changed
        self.author, self.serial = message.member, message.serial
        member = self.members.living.get(message.member)
        if member is not None:
            if message.serial != member.serial + 1:
                return self._out_of_order(member, message.serial, at, changed)
            member.serial, member.last = message.serial, at
        return self._take(message, member, at, changed)

    def _take_short(self, data: bytes, at: float, changed: Sequence[Ticket]) -> Sequence[Ticket]:
        """``_take`` for what most entries say, in a fraction of its time."""
        _, _, lane, serial, ended, number, size = unpack_short(data)
        self.author, self.serial = name, _ = str(data[NAME:], "utf-8", "replace"), serial
        member = self.members.living.get(name)
        if member is None:
            return changed
        if serial != member.serial + 1:
            return self._out_of_order(member, serial, at, changed)
        member.serial, member.last = serial, at
        if ended:
            ticket = member.tickets.pop(ended, None)
            if ticket is not None:
                changed = _both(changed, self.ledger.release(ticket, at))  # type: ignore[union-attr]
        if number:
            changed = _both(changed, self._ask_for(member, number, size, lane, None, at))
        return self._settled(changed) if changed else _NOTHING

    def _out_of_order(
        self, member: Member, serial: int, at: float, changed: Sequence[Ticket]
    ) -> Sequence[Ticket]:
        """Take an entry that came twice, or before which something was lost."""
        if serial <= member.serial:
            return changed
        return self._settled([*changed, *self._die(member, at, certain=False)])

    def _take(
        self, message: Message, member: Member | None, at: float, changed: Sequence[Ticket]
    ) -> Sequence[Ticket]:
        for operation in message.operations:
            apply = None if member is None else self._apply.get(type(operation))
            if apply is None:
                more = self._from_outside(message, operation, at)
            else:
                more = apply(member, operation, at)
            changed = _both(changed, more)
            if len(message.operations) > 1:
                member = self.members.living.get(message.member)
        return self._settled(changed) if changed else _NOTHING

    def _from_outside(self, message: Message, said: Any, at: float) -> Sequence[Ticket]:
        """Take an entry from one that is no member, or not yet."""
        kind = type(said)
        if message.member in self.members.living:
            return _NOTHING
        if kind is Open:
            return self._open(said)
        if kind is Join and message.serial == 1 and message.member not in self.members.dead:
            return self._join(message.member, said, at)
        if kind in (Gone, Drain) and self.ledger is not None:  # an operator needn't take part
            return self._apply[kind](_OPERATOR, said, at)
        return _NOTHING

    def _settled(self, changed: Sequence[Ticket]) -> Sequence[Ticket]:
        for ticket in changed:
            if ticket.state is REFUSED:
                self.members.living.get(ticket.owner, _OPERATOR).tickets.pop(ticket.number, None)
        return changed

    def _let_pass(self, at: float) -> Sequence[Ticket]:
        changed: list[Ticket] = []
        if self.settles is not None and at >= self.settles:
            self.settles = None
            changed += self._run(at)
        if self.expires:
            for member in self.members.overdue(at, self._ttl):
                changed += self._die(member, at, certain=False)
        for member in self.members.rested(at):
            del self.members.dead[member.name]
            changed += self._free(member, at)
        self.look_ahead()
        return self._settled(changed)

    def look_ahead(self) -> None:
        ttl = self._ttl if self.expires else math.inf
        settles = math.inf if self.settles is None else self.settles
        self._wait_until = min(settles, self.members.next_change(ttl))

    @property
    def _ttl(self) -> float:
        return math.inf if self.terms is None else self.terms.lease_ttl

    @property
    def is_given(self) -> bool:
        """Whether a capacity in bytes was given: what processes measure does not change it."""
        return "capacities" in self.since

    @property
    def next_change(self) -> float:
        """When, by the log's time, an entry is needed for something to happen; infinite for never."""
        self.look_ahead()
        return self._wait_until

    def _most_running(self) -> int | None:
        if self.settles is not None:
            return 0
        return None if self.terms is None else self.terms.max_running

    def _run(self, at: float) -> Sequence[Ticket]:
        return _NOTHING if self.ledger is None else self.ledger.run_at_most(self._most_running(), at)

    def _open(self, said: Open) -> Sequence[Ticket]:
        self.changes += 1
        epoch, at = self.epoch + 1, self._stamp
        self._begin()
        self.at, self.epoch, self.expires = at, epoch, said.expires
        if said.settle > 0:
            self.settles = self._wait_until = at + said.settle
        return _NOTHING

    def _join(self, name: str, said: Join, at: float) -> Sequence[Ticket]:
        changed: list[Ticket] = []
        self.changes += 1
        if not self.members.living and not self.members.dead:
            self.terms, self.since, self.ledger = None, {}, None  # all gone: the next begins with its own
        if said.former in self.members.living:
            changed += self._die(self.members.living[said.former], at, certain=False)
        member = self.members.living[name] = Member(name, said.pid, said.host, at)
        member.serial, member.terms, member.devices = 1, said.terms, said.devices
        changed += self._agree(said.terms, said.since or at, at)
        former = self.members.dead.pop(said.former, None)
        for held in said.holds:
            rests = None if former is None else former.tickets.pop(held.number, None)
            changed += self._hold(member, held, at) if rests is None else self._keep(member, rests, held, at)
        if former is not None:
            changed += self._free(former, at)
        self.look_ahead()
        return changed

    def _agree(self, terms: Terms, since: float, at: float) -> Sequence[Ticket]:
        """Put those of ``terms`` into force that were given, and are the newest."""
        changed: Sequence[Ticket] = _NOTHING
        self.changes += 1
        force = self.terms
        self.terms, self.since = agree(force, self.since, terms, since)
        if self.ledger is None or force is None:
            self.ledger = ledger_of(self.terms)
            self._run(at)
        elif self.terms != force:
            self.ledger, changed = take_terms(self.ledger, force, self.terms, self.members.held(), at)
            changed = [*changed, *self._run(at)]
        for member in self.members:
            member.follow(self.terms)
        return changed

    def _keep(self, member: Member, rests: Ticket, held: Held, at: float) -> Sequence[Ticket]:
        """A process counted as dead lives after all: what it holds was never given away."""
        ticket = self.own(member.name, held.number) or rests
        ticket.take_over(rests)
        ticket.owner, ticket.number, ticket.started = member.name, held.number, True
        member.tickets[held.number] = ticket
        assert self.ledger is not None
        return self.ledger.change(ticket, held.size, at) if held.size != ticket.bytes else _NOTHING

    def _hold(self, member: Member, held: Held, at: float) -> Sequence[Ticket]:
        """Work that runs already is counted, above the limit too: nothing starts until it fits."""
        assert self.ledger is not None
        ticket = member.ticket(self.own, len(self.ledger.lanes), held.number, held.size, held.lane, held.flow)
        device = held.device if held.device < len(self.ledger.accounts) else 0
        self.ledger.force(ticket, at, device)
        ticket.granted_at = at - held.age
        ticket.started = True
        member.tickets[held.number] = ticket
        return _NOTHING

    def _die(self, member: Member, at: float, *, certain: bool) -> Sequence[Ticket]:
        self.changes += 1
        del self.members.living[member.name]
        changed: list[Ticket] = []
        for ticket in [t for t in member.in_order() if t.state is not GRANTED]:
            del member.tickets[ticket.number]
            changed += self._release(ticket, at)
        for device in member.allowed:
            changed += self._recount(device, at)
        if certain:
            return [*changed, *self._free(member, at)]
        member.until = at + self._ttl / 2
        # Copies: its process, if it lives, goes on with the objects that it has.
        member.tickets = {number: copy.copy(ticket) for number, ticket in member.tickets.items()}
        self.members.bury(member)
        self.look_ahead()
        return changed

    def _free(self, member: Member, at: float) -> Sequence[Ticket]:
        return [changed for ticket in member.in_order() for changed in self._release(ticket, at)]

    def _gone(self, member: Member, said: Gone, at: float) -> Sequence[Ticket]:
        gone = self.members.gone(said.member, member)
        return self._die(gone, at, certain=said.certain) if gone else _NOTHING

    def _ask(self, member: Member, said: Ask, at: float) -> Sequence[Ticket]:
        return self._ask_for(member, said.number, said.size, said.lane, said.flow, at)

    def _ask_for(
        self, member: Member, number: int, size: int, lane: int, flow: bytes | None, at: float
    ) -> Sequence[Ticket]:
        assert self.ledger is not None
        if number in member.tickets:
            return _NOTHING
        ticket = member.ticket(self.own, len(self.ledger.lanes), number, size, lane, flow)
        changed = self.ledger.request(ticket, at)
        if ticket.state is REFUSED:
            return [*changed, ticket]
        member.tickets[number] = ticket
        return changed

    def _end(self, member: Member, said: End, at: float) -> Sequence[Ticket]:
        ticket = member.tickets.pop(said.number, None)
        return self._release(ticket, at) if ticket else _NOTHING

    def _release(self, ticket: Ticket, at: float) -> Sequence[Ticket]:
        return self.ledger.release(ticket, at)  # type: ignore[union-attr]

    def _change(self, member: Member, said: Change, at: float) -> Sequence[Ticket]:
        assert self.ledger is not None
        ticket = member.tickets.get(said.number)
        if ticket is None or ticket.state is not GRANTED:
            return _NOTHING
        grows = said.must_fit and said.size > ticket.bytes
        if grows and (self.settles is not None or not self.ledger.can_grow(ticket, said.size)):
            return _NOTHING
        return self.ledger.change(ticket, said.size, at)

    def _adopt(self, member: Member, said: Adopt, at: float) -> Sequence[Ticket]:
        for held in said.holds:
            if held.number not in member.tickets:
                self._hold(member, held, at)
        return _NOTHING

    def _refuse(self, member: Member, said: Refuse, at: float) -> Sequence[Ticket]:
        assert self.ledger is not None
        return self.ledger.refuse(member.in_order(), at)

    def _beat(self, member: Member, said: Beat, at: float) -> Sequence[Ticket]:
        member.resident, member.taken = said.resident, said.taken
        if said.told:
            self._hear(said.told)
        return _NOTHING

    def _allow(self, member: Member, said: Allow, at: float) -> Sequence[Ticket]:
        assert self.ledger is not None
        if said.device >= len(self.ledger.accounts):
            return _NOTHING
        until = None if said.why is None or said.why.seconds is None else at + said.why.seconds
        member.allowed[said.device] = Allowed(said.ceiling, said.max_running, said.why, until)
        changed = self._recount(said.device, at, None if self.is_given else said.capacity)
        if said.ceiling == 0 and all(account.ceiling == 0 for account in self.ledger.accounts):
            # What comes now is refused at once: so is what came before.
            return [*changed, *self.ledger.refuse_all(at)]
        return changed

    def _recount(self, device: int, at: float, capacity: int | None = None) -> Sequence[Ticket]:
        assert self.ledger is not None
        allowed = self.members.allowed(device)
        return self.ledger.allow(
            device, at, capacity=capacity, ceiling=allowed.ceiling, max_running=allowed.max_running
        )

    def _resize(self, member: Member, said: Resize, at: float) -> Sequence[Ticket]:
        if self.ledger is None or len(said.capacities) != len(self.ledger.accounts):
            return _NOTHING
        self.changes, self.since = self.changes + 1, {**self.since, "capacities": at}
        self.members.resized = Resized(member, [a.capacity for a in self.ledger.accounts], said.capacities)
        return self.ledger.resize(said.capacities, at)

    def _drain(self, member: Member, said: Drain, at: float) -> Sequence[Ticket]:
        assert self.ledger is not None
        self.changes += 1
        return self.ledger.close(at) if said.closed else self.ledger.reopen(self._most_running(), at)


def _both(some: Sequence[Ticket], more: Sequence[Ticket]) -> Sequence[Ticket]:
    """``some`` and ``more``, most often none of them."""
    return [*some, *more] if some and more else some or more
