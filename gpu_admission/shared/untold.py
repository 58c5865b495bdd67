"""Leases of this process that have just ended, before the log was told.

Owns which they are. One may be handed on to a request of the same size, which saves both an entry;
when that is fair is decided in ``owngrants``.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpu_admission.budget.ticket import Ticket
from gpu_admission.shared.operations import End

MOMENT = 0.002
"""Seconds for which an end may stay untold, and what was read counts as fresh."""


class Untold:
    """Tickets by their numbers, under the lock of the ``Membership`` that they belong to."""

    def __init__(self) -> None:
        self._tickets: dict[int, Ticket] = {}

    def __len__(self) -> int:
        return len(self._tickets)

    def add(self, ticket: Ticket) -> None:
        self._tickets[ticket.number] = ticket

    def like(self, ticket: Ticket) -> Ticket | None:
        """One that can be handed on to ``ticket``: it was asked for in the same way."""
        for one in self._tickets.values():
            if one.bytes == ticket.bytes and one.lane == ticket.lane and one.flow is ticket.flow is None:
                return one
        return None

    def remove(self, ticket: Ticket) -> None:
        del self._tickets[ticket.number]

    def pop(self) -> int:
        """The number of the last; 0 where there is none. It counts as told."""
        return self._tickets.popitem()[0] if self._tickets else 0

    def tell(self, most: int) -> Sequence[End]:
        """The ends of up to ``most`` of them, which count as told."""
        return [End(self.pop()) for _ in range(min(most, len(self._tickets)))]

    def clear(self) -> None:
        self._tickets.clear()
