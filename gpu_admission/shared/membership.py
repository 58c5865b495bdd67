"""This process's membership in a shared budget: from join to leave, through losses and deaths.

Owns the way to the log and the replica that follows it: what was said and has come back, beats,
others' deaths, and joining again after its own. Which ticket waits for what is in ``ledger``.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from gpu_admission.budget.ticket import REFUSED, WAITING, Ticket
from gpu_admission.shared import dump
from gpu_admission.shared.compatibility import why_not
from gpu_admission.shared.deaths import Deaths
from gpu_admission.shared.gossip import Gossip, Use
from gpu_admission.shared.lastword import LastWord
from gpu_admission.shared.news import News
from gpu_admission.shared.operations import (
    MOST_HELD,
    MOST_OPERATIONS,
    Adopt,
    Allow,
    Gone,
    Held,
    Join,
    Operation,
    Terms,
    encode,
    parts,
)
from gpu_admission.shared.outbox import Outbox
from gpu_admission.shared.owntickets import OwnTickets, ask_for
from gpu_admission.shared.process import host_name, pid, process_of
from gpu_admission.shared.protocol import Entry, Log, LogAway
from gpu_admission.shared.replica import Replica
from gpu_admission.shared.terms import InForce, again
from gpu_admission.shared.untold import MOMENT, Untold

logger = logging.getLogger("gpu_admission")

_LOOK_FOR_DEATHS = 0.2
_POLL = 1.0
_BEATS_IN_TTL = 5


class Membership:
    """Follows ``log`` for one process. ``woken`` gets own tickets that others granted or refused."""

    def __init__(
        self,
        log: Log,
        terms: Terms,
        *,
        woken: Callable[[Sequence[Ticket]], object],
        use: Use,
        clock: Callable[[], float],
        name: str,
        devices: Callable[[], Sequence[str]],
    ) -> None:
        self.log = log
        self.terms = terms
        self.turn = LastWord(self._do_all_work)
        self.own = OwnTickets()
        self.outbox = Outbox(name, clock)
        self._gossip = use if isinstance(use, Gossip) else Gossip(use)
        self.replica = Replica(self._own_ticket, self._gossip.take_in)
        self.away: str | None = None
        self.leases_lost = 0
        self.is_in = False
        """Its join has come back."""
        self.has_left = False
        self.changed: list[Ticket] = []
        """Tickets of any process that were granted or refused, of which nobody was told yet."""
        self.allowed: dict[int, Allow] = {}
        """What this process's guards last said of each device; repeated when it joins again."""
        self.late: deque[Callable[[], None]] = deque()
        """What came in the middle of a call, as from a garbage collection: done at the call's end."""
        self.untold = Untold()
        self._noted = -1
        self._woken = woken
        self._devices, self._named = devices, tuple[str, ...]()
        self._clock = clock
        self._is_reading = True
        self._epoch = 0
        self._since = 0.0
        self._seen: tuple[float, float] = (0.0, clock())
        self._beaten = -math.inf
        self._force = InForce()
        self._deaths = Deaths(log)
        self._news = News(log.where, self.outbox.process)

    # joining and leaving

    def begin(self) -> None:
        self.outbox.member, self.is_in, self.has_left = "", False, False
        self.log.start(self.outbox.process, self)
        self._named = tuple(self._devices())
        with self.turn.lock:
            dead = self._deaths.certain(self._others()) if self.log.knows_deaths else []
            said = why_not(self.replica, self.log.where, self.terms, self._named, dead)
        if said is not None:
            self.log.stop()
            raise ValueError(said)
        with self.turn:
            for gone in dead:
                self.log.append(encode("", 0, gone))
            self._enter()

    def leave(self) -> None:
        self.has_left = True
        with self.turn:
            self.tell_all(Gone(self.outbox.member, certain=True))
        self.log.stop()

    def _enter(self) -> None:
        """Join, or join again: declare what runs, and ask again for what waits."""
        former, member = self.outbox.member, self.outbox.enter()
        self.own.marks_back()
        self.is_in, self._epoch = False, self.replica.epoch
        self.own.alone.clear()
        self.untold.clear()
        more = self.own.running[MOST_HELD:]
        claimed = "" if more else former  # what a claim does not name goes to others at once
        holds = tuple(map(self._held, self.own.running[:MOST_HELD]))
        terms = again(self.terms, self._force.terms)
        join = Join(pid(), host_name(), terms, self._since, claimed, holds, self._named)
        self.append(join)
        if more:
            self.adopt(more)
            self.append(Gone(former, certain=False))
        for allow in self.allowed.values():
            self.append(self._known(allow))
        for part in parts(self.own.waiting, MOST_OPERATIONS):
            self.append(*map(ask_for, part), asks=[ticket.number for ticket in part])
        logger.debug("joined the budget %s as %s", self.log.where, member)

    def _known(self, allow: Allow) -> Allow:
        """``allow`` without a capacity, where others know one: that may be newer."""
        if not set(self.replica.members.living) - {self.outbox.member}:
            return allow
        accounts = () if self.replica.ledger is None else self.replica.ledger.accounts
        is_known = allow.device < len(accounts) and accounts[allow.device].capacity > 0
        return msgspec.structs.replace(allow, capacity=None) if is_known else allow

    def adopt(self, tickets: Sequence[Ticket]) -> None:
        """Have what runs already counted, whether it fits or not."""
        for part in parts(tickets, MOST_HELD):
            self.tell(Adopt(tuple(map(self._held, part))))

    def _held(self, ticket: Ticket) -> Held:
        age = max(0.0, self.now() - ticket.granted_at)
        size = self.own.size_of(ticket)
        return Held(ticket.number, size, ticket.device, ticket.own_lane, ticket.flow, age)

    # the log reports

    def received(self, entries: Sequence[Entry]) -> None:
        with self.turn:
            replica, me = self.replica, self.outbox.member
            for at, data in entries:
                changed = replica.apply(at, data)
                if replica.author == me:
                    # Whoever affects others wakes them; each sees for itself what became of its own asks.
                    self.changed += changed
                    self._came_back(replica.serial)
                elif changed:
                    self.changed += [ticket for ticket in changed if ticket.owner == me]
            self._seen = (replica.at, self._clock())

    def _came_back(self, serial: int) -> None:
        if not self.is_in and self.outbox.member in self.replica.members.living:
            self.is_in = True
            self._since = self._since or self.replica.at
        self.own.back(self.outbox.came_back(serial))

    def restarted(self, snapshot: bytes | None) -> None:
        with self.turn:
            self._is_reading = True
            self.changed.clear()
            self._noted = -1
            self.replica = Replica(self._own_ticket, self._gossip.take_in)
            if snapshot is not None:
                dump.load(self.replica, snapshot)

    def went_away(self, why: str) -> None:
        with self.turn:
            if self.away is None:
                logger.warning("%s: requests wait for it; what runs goes on", why)
            self.away = why
            self.own.all_back()

    def came_back(self) -> None:
        with self.turn:
            if self.away is not None:
                logger.warning("the shared budget %s is back", self.log.where)
            self.away, self._is_reading = None, False
            if self.outbox.has_dropped and not self._is_out():
                self._enter()
            member = self.replica.members.living.get(self.outbox.member)
            if self._is_out():
                return  # declared dead: it joins again at once
            for data in self.outbox.again(0 if member is None else member.serial):
                self.log.append(data)
            self.flush()
            if member is None:
                return
            self._find_the_missing(member.tickets)
            alone, self.own.alone = self.own.alone, {}
            self.adopt(tuple(alone.values()))

    def _find_the_missing(self, known: dict[int, Ticket]) -> None:
        """Refused in a part of the log that this process never read, since a snapshot replaces it."""
        for ticket in self.own:
            if ticket.state is WAITING and ticket.number not in known:
                ticket.state = REFUSED
                self.changed.append(ticket)

    def _own_ticket(self, member: str, number: int) -> Ticket | None:
        return self.own.get(number) if member == self.outbox.member else None

    # the turn of the log's wheel

    def pulse(self) -> float:
        """Catch up, beat, look for deaths: called by a thread. Returns seconds until the next."""
        with self.turn:
            if self.has_left:
                return 0.0
            now = self._clock()
            self.log.catch_up()
            self.flush()
            self._beat_if_due(now)
            self.bury(0.0)
            return self._pause(now)

    def snapshot(self) -> bytes:
        with self.turn.lock:
            return dump.dump(self.replica)

    def _beat_if_due(self, now: float) -> None:
        member = self.replica.members.living.get(self.outbox.member)
        if member is None or self.away is not None:
            return
        said = self._gossip.beat()
        due = self.replica.expires and not 0 <= now - self._beaten < self.ttl / _BEATS_IN_TTL
        late = self.replica.next_change <= self.now()
        if due or late or (member.resident, member.taken) != (said.resident, said.taken) or said.told:
            self._beaten = now
            self.append(said)

    def _pause(self, now: float) -> float:
        """Short while a death would free bytes that are waited for, or the log's time decides."""
        ledger = self.replica.ledger
        pause = _POLL
        if self.log.knows_deaths and ledger is not None and ledger.waiting:
            pause = _LOOK_FOR_DEATHS
        if self.replica.expires:
            pause = min(pause, max(0.01, self._beaten + self.ttl / _BEATS_IN_TTL - now))
        return min(pause, max(0.01, self.replica.next_change - self.now()))

    def look_for_bytes(self) -> None:
        """Somebody of this process has begun to wait: find what the dead hold, and what was not told yet."""
        self.bury(_LOOK_FOR_DEATHS)
        ledger = self.replica.ledger
        if self.log.is_immediate and ledger is not None and ledger.waiting == 1:
            holders = {name for name, member in self.replica.members.living.items() if member.tickets}
            self.log.wake({process_of(name) for name in holders} - {self.outbox.process})

    def bury(self, pause: float) -> None:
        """Say in the log who has died, unless that was looked at within ``pause``."""
        if self.away is not None or self._is_reading:
            return
        for gone in self._deaths.look(self._others(), self._clock(), self.ttl, pause):
            self.append(gone)

    def _others(self) -> list[str]:
        return [name for name in self.replica.members.living if name != self.outbox.member]

    # appending

    def ask(self, ticket: Ticket) -> None:
        """Say that ``ticket`` is wanted, and what has ended before."""
        untold = self.untold
        if ticket.flow is None and len(untold) <= 1 and self.is_in:
            self._send(self.outbox.say_short(untold.pop(), ticket.number, ticket.bytes, ticket.own_lane))
        else:
            self.append(ask_for(ticket), asks=(ticket.number,))

    def flush(self) -> None:
        """Say what has ended, unless the log is away: then it is said when it is back."""
        untold = self.untold
        if not untold or self.away is not None or self._is_reading or self.has_left:
            return
        if len(untold) == 1 and self.is_in:
            self._send(self.outbox.say_short(untold.pop(), 0, 0, 0))
        while untold:
            self.append()

    def append(self, *operations: Operation, asks: Sequence[int] = ()) -> None:
        """Say ``operations``, and first what has ended before. Raises ``LogAway`` as the outbox does."""
        if self.untold and len(operations) < MOST_OPERATIONS:
            operations = (*self.untold.tell(MOST_OPERATIONS - len(operations)), *operations)
        self._send(self.outbox.say(*operations, asks=asks))

    def tell(self, *operations: Operation, asks: Sequence[int] = ()) -> None:
        """``append``. Where too much has piled up, this process joins anew instead when the log is back."""
        try:
            self.append(*operations, asks=asks)
        except LogAway:
            self.outbox.has_dropped = True

    def _send(self, data: bytes) -> None:
        if self.away is None and not self._is_reading:  # else it is appended when the log is back
            self.log.append(data)

    def _do_all_work(self) -> None:
        """Do what the log's reports call for: last, and outside of the log."""
        while not self._is_reading and (self.late or self.changed or self._noted != self.replica.changes):
            if self.late:
                self.late.popleft()()
            else:
                if self._noted != self.replica.changes:
                    self._compare_terms()
                self._do_work()

    def _is_out(self) -> bool:
        """Whether it took part, or was about to, and was thrown out."""
        member = self.outbox.member
        if not member or self.has_left or member in self.replica.members.living:
            return False
        return self.is_in or self._epoch != self.replica.epoch

    def _do_work(self) -> None:
        changed, self.changed = self.changed, []
        own = [t for t in changed if t.owner == self.outbox.member and t in self.own]
        others = {process_of(t.owner) for t in changed} - {self.outbox.process}
        if others:
            self.log.wake(others)
        if own:
            self._woken(own)
        if self._is_out():
            self._join_again()

    def _join_again(self) -> None:
        held = len(self.own.running)
        if self.is_in:
            self.leases_lost += held
            logger.warning(
                "this process is no member of the shared budget %s any more (it was silent for longer than "
                "lease_ttl=%g s, was evicted, or the log has begun anew): it joins again with %d leases. "
                "If that comes often, raise lease_ttl",
                self.log.where,
                self.ttl,
                held,
            )
        self._enter()

    def _compare_terms(self) -> None:
        self._noted = self.replica.changes
        self._news.tell(self.replica)
        terms, ledger = self.replica.terms, self.replica.ledger
        if terms is not None and ledger is not None:
            self._force.compare(self.log.where, self.terms, terms, ledger, has_joined=self._since > 0)

    def tell_all(self, operation: Operation) -> None:
        """Say what concerns everybody, and have them read it soon."""
        self.tell(operation)
        self.log.wake({process_of(name) for name in self.replica.members.living} - {self.outbox.process})

    # what is known

    @property
    def ttl(self) -> float:
        terms = self.replica.terms
        return self.terms.lease_ttl if terms is None else terms.lease_ttl

    @property
    def is_fresh(self) -> bool:
        """Whether it was confirmed as a member so recently that nothing it holds can be given away yet."""
        return self._clock() - self.outbox.confirmed < self.ttl / 2

    def now_if_up_to_date(self) -> float | None:
        """The log's time, where it ``is_fresh`` and what it knows of others is at most ``MOMENT`` old."""
        clock, (at, seen) = self._clock(), self._seen  # one look at the clock: each costs 0.1 us
        if clock - seen >= MOMENT or clock - self.outbox.confirmed >= self.ttl / 2:
            return None
        return at + (clock - seen)

    def now(self) -> float:
        """The log's time now, roughly."""
        at, seen = self._seen
        return at + (self._clock() - seen)

    def beat(self, number: int) -> None:
        """Say that this process lives, and call whoever waits for ``number`` once that has come back."""
        self.append(self._gossip.beat(), asks=(number,))
