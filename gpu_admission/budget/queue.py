"""First in, first out, with one more question: who is the first that is no larger than this?

Owns the order of one line of waiters and the index over their sizes. It knows nothing of
lanes, budgets or time; who may start is the ledger's business.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpu_admission.budget.ticket import Ticket

_SHIFT = 6
_FANOUT = 1 << _SHIFT
_GONE = 1 << 63


class SizedQueue:
    """A FIFO of tickets; joining, leaving from anywhere and ``first_at_most`` are O(log n).

    Level 0 holds the size of each slot, and each further level the smallest of 64 slots
    below it. A slot that was left holds a size that nothing fits.
    """

    __slots__ = ("_base", "_head", "_levels", "_tickets", "_waiting")

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._tickets: list[Ticket | None] = []
        self._levels: list[list[int]] = [[]]
        self._base = 0
        self._head = 0
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def __iter__(self) -> Iterator[Ticket]:
        return (ticket for ticket in self._tickets if ticket is not None)

    def append(self, ticket: Ticket) -> None:
        index = len(self._tickets)
        ticket.slot = self._base + index
        self._tickets.append(ticket)
        self._waiting += 1
        for level in self._levels:
            if index == len(level):
                level.append(ticket.bytes)
            elif ticket.bytes < level[index]:
                level[index] = ticket.bytes
            index >>= _SHIFT
        top = self._levels[-1]
        if len(top) > _FANOUT:
            self._levels.append([min(top[i : i + _FANOUT]) for i in range(0, len(top), _FANOUT)])

    def remove(self, ticket: Ticket) -> None:
        self._waiting -= 1
        if not self._waiting:
            self._clear()
            return
        index = ticket.slot - self._base
        self._tickets[index] = None
        self._levels[0][index] = _GONE
        for below, level in pairwise(self._levels):
            index >>= _SHIFT
            if level[index] != ticket.bytes:
                break
            level[index] = min(below[index << _SHIFT : (index + 1) << _SHIFT])
        self._trim()
        if len(self._tickets) - self._head > 4 * self._waiting + _FANOUT:
            self._close_up()

    def resize(self, ticket: Ticket, size: int) -> None:
        """Make ``ticket``, which waits here, ``size`` bytes large; it keeps its place."""
        ticket.bytes = size
        index = ticket.slot - self._base
        self._levels[0][index] = size
        for below, level in pairwise(self._levels):
            index >>= _SHIFT
            level[index] = min(below[index << _SHIFT : (index + 1) << _SHIFT])

    def _trim(self) -> None:
        """Drop whole blocks of left slots at the front, so that memory follows the waiters."""
        while self._tickets[self._head] is None:
            self._head += 1
        block = _FANOUT ** max(1, len(self._levels) - 1)
        cut = self._head // block * block
        if not cut:
            return
        del self._tickets[:cut]
        for level in self._levels:
            del level[:cut]
            cut >>= _SHIFT
        cut = self._head // block * block
        self._base += cut
        self._head -= cut

    def _close_up(self) -> None:
        """Line the waiters up anew: many have left from behind one that stays."""
        tickets = list(self)
        self._clear()
        for ticket in tickets:
            self.append(ticket)

    @property
    def first(self) -> Ticket:
        ticket = self._tickets[self._head]
        assert ticket is not None
        return ticket

    def first_at_most(self, size: int) -> Ticket | None:
        """The earliest waiter of at most ``size`` bytes."""
        found = 0
        for level in reversed(self._levels):
            index = found << _SHIFT
            stop = min(index + _FANOUT, len(level))
            while index < stop and level[index] > size:
                index += 1
            if index == stop:
                return None
            found = index
        return self._tickets[found]
