"""This process's own tickets: those that wait or run, and who is to be called when an ask has come back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from gpu_admission.budget.ticket import NEW, Ticket
from gpu_admission.shared.operations import Ask


class OwnTickets:
    """Tickets by their number. Under the lock of the ``Membership`` that they belong to."""

    def __init__(self) -> None:
        self._tickets: dict[int, Ticket] = {}
        self._returns: dict[int, Callable[[], object]] = {}
        self._number = 0
        self.alone: dict[int, Ticket] = {}
        """Those that this process granted by itself while the log was away."""
        self.told: dict[int, tuple[int, int]] = {}
        """Until it is known, the size that a ticket was last given, and the number that said so."""

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Ticket]:
        return iter(list(self._tickets.values()))

    def __contains__(self, ticket: Ticket) -> bool:
        return self._tickets.get(ticket.number) is ticket

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def add(self, ticket: Ticket) -> None:
        """Know ``ticket`` from now on. When it is asked for first, its lane is one of this process's own."""
        if ticket.own_lane < 0:
            ticket.own_lane = ticket.lane
        self._tickets[ticket.number] = ticket

    def remove(self, ticket: Ticket) -> bool:
        """Forget ``ticket``; whether the log has to be told."""
        del self._tickets[ticket.number]
        self.told.pop(ticket.number, None)
        return self.alone.pop(ticket.number, None) is None

    def end(self, ticket: Ticket) -> bool:
        """Forget ``ticket`` if that calls for nothing but telling the log; whether it did."""
        tickets, number = self._tickets, ticket.number
        if self._returns or self.alone or self.told or tickets.get(number) is not ticket:
            return False
        del tickets[number]
        return True

    def size_of(self, ticket: Ticket) -> int:
        """The bytes that ``ticket`` is to hold, whether the log has them already or not."""
        return self.told.get(ticket.number, (0, ticket.bytes))[1]

    def get(self, number: int) -> Ticket | None:
        return self._tickets.get(number)

    @property
    def running(self) -> list[Ticket]:
        return [ticket for ticket in self._tickets.values() if ticket.started]

    @property
    def waiting(self) -> list[Ticket]:
        return [ticket for ticket in self._tickets.values() if not ticket.started]

    def when_back(self, number: int, call: Callable[[], object]) -> None:
        """Have ``call`` called once, when what was said with ``number`` has come back, or can't."""
        self._returns[number] = call

    def back(self, numbers: Sequence[int]) -> None:
        for number in numbers if self._returns else ():
            call = self._returns.pop(number, None)
            if call is not None:
                call()

    def marks_back(self) -> None:
        """What was said beside asks can't come back any more: it is void. Tickets are asked for again."""
        self.back([number for number in self._returns if number not in self._tickets])

    def all_back(self) -> None:
        self.back(list(self._returns))


def ask_for(ticket: Ticket) -> Ask:
    """What asks for ``ticket``, as new."""
    ticket.state = NEW
    return Ask(ticket.number, ticket.bytes, ticket.own_lane, ticket.flow)
