"""What a shared budget must do, written a second time: one plain ledger, fed the log's entries in order.

An independent reader: it knows the format of operations and nothing of replicas.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpu_admission.budget.ticket import State, Ticket
from gpu_admission.shared.operations import (
    Allow,
    Ask,
    Change,
    Drain,
    End,
    Gone,
    Join,
    Message,
    Open,
    Operation,
    Refuse,
    Resize,
    Terms,
    decode,
)
from gpu_admission.shared.protocol import Entry
from gpu_admission.shared.terms import ledger_of

Said = list[tuple[str, int, str]]


class Plain:
    """One ledger for everybody, where deaths are known: time kills nobody."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.ledger = ledger_of(terms)
        self.tickets: dict[tuple[str, int], Ticket] = {}
        self.ceilings: dict[tuple[str, int], int | None] = {}
        self.most = 0
        """Bytes held above the limit at the worst."""

    def take(self, entries: Iterable[Entry]) -> list[Said]:
        """What each entry granted or refused."""
        return [self.take_one(entry) for entry in entries]

    def take_one(self, entry: Entry) -> Said:
        message = decode(entry.data)
        changed: list[Ticket] = []
        before = self.ledger.in_use
        for operation in () if message is None else message.operations:
            assert message is not None
            changed += self._one(message, operation, entry.at)
        if changed and self.ledger.in_use > before:
            self.most = max(self.most, self.ledger.in_use - self.limit)
        return [(ticket.owner, ticket.number, ticket.state.value) for ticket in changed]

    @property
    def limit(self) -> int:
        return sum(account.limit for account in self.ledger.accounts)

    def _one(self, message: Message, said: Operation, now: float) -> Sequence[Ticket]:
        who, ledger = message.member, self.ledger
        match said:
            case Ask(number, size, lane, flow):
                ticket = self.tickets[who, number] = Ticket(size, lane, flow)
                ticket.owner, ticket.number = who, number
                granted = ledger.request(ticket, now)
                return [*granted, ticket] if ticket.state is State.REFUSED else granted
            case End(number):
                ended = self.tickets.get((who, number))
                return ledger.release(ended, now) if ended else ()
            case Change(number, size, must_fit):
                held = self.tickets.get((who, number))
                if held is None or held.state is not State.GRANTED:
                    return ()
                if must_fit and size > held.bytes and not ledger.can_grow(held, size):
                    return ()
                return ledger.change(held, size, now)
            case Allow(device, _, ceiling):
                self.ceilings[who, device] = ceiling
                changed = self._recount(device, now)
                closed = ceiling == 0 and all(account.ceiling == 0 for account in ledger.accounts)
                return [*changed, *ledger.refuse_all(now)] if closed else changed
            case Resize(capacities):
                return ledger.resize(capacities, now)
            case Drain(closed):
                return ledger.close(now) if closed else ledger.reopen(self.terms.max_running, now)
            case Refuse():
                return ledger.refuse(self._of(who, State.WAITING), now)
            case Gone(member):
                return self._bury(member, now)
            case Join() | Open():
                return ()
        return ()

    def _recount(self, device: int, now: float) -> Sequence[Ticket]:
        said = [c for (_, on), c in self.ceilings.items() if on == device and c is not None]
        return self.ledger.allow(device, now, ceiling=min(said, default=None))

    def _bury(self, member: str, now: float) -> list[Ticket]:
        changed: list[Ticket] = []
        for ticket in self._of(member, State.WAITING):
            changed += self.ledger.release(ticket, now)
        for key in [key for key in self.ceilings if key[0] == member]:
            del self.ceilings[key]
            changed += self._recount(key[1], now)
        for ticket in self._of(member, State.GRANTED):
            changed += self.ledger.release(ticket, now)
        return changed

    def _of(self, member: str, state: State) -> list[Ticket]:
        own = sorted((n, t) for (who, n), t in self.tickets.items() if who == member and t.state is state)
        return [ticket for _, ticket in own]
