"""What the rest of an admission may ask of its budget, whether it is this process's own or shared.

Owns that contract, and no behaviour: ``locked`` and ``sharing`` fulfil it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from gpu_admission.budget.ledger import Ledger
from gpu_admission.budget.ticket import Ticket
from gpu_admission.guards.limited import Limited
from gpu_admission.guards.verdict import Verdict
from gpu_admission.runtime.answer import Answer
from gpu_admission.runtime.turn import Turn
from gpu_admission.types import MemberSnapshot

Woken: TypeAlias = Callable[[Sequence[Ticket]], object]
"""Called inside the turn, from any thread, with those that a change has granted or refused: it may
only schedule."""


class Budget(Limited, Protocol):
    """A ledger, its turn and its wake-ups.

    Read ``ledger`` inside ``with budget:`` where several figures must agree, with ``now()`` for
    its time; never change or keep it.
    """

    turn: Turn

    def __enter__(self) -> Ledger: ...
    def __exit__(self, *error: object) -> None: ...

    @property
    def ledger(self) -> Ledger: ...

    @property
    def lane_names(self) -> Sequence[str]:
        """The ledger's lanes. Once a ticket has been asked for, its ``lane`` is an index into these."""
        ...

    def now(self) -> float:
        """The ledger's time."""
        ...

    @property
    def is_joined(self) -> bool:
        """Whether there is nothing left to do before a request may be asked for."""
        ...

    @property
    def is_given(self) -> bool:
        """Whether processes that share it gave its capacity in bytes: then none is measured."""
        ...

    @property
    def is_closed(self) -> bool:
        """Whether nothing is let in any more: drained."""
        ...

    @property
    def may_resize(self) -> bool:
        """Whether ``change`` takes a ticket that waits, too."""
        ...

    @property
    def away(self) -> str | None:
        """Why a shared budget can't be reached just now."""
        ...

    @property
    def is_cut_off(self) -> bool:
        """Whether a shared budget has been away since this process began, so that nothing can start."""
        ...

    @property
    def settles(self) -> float | None:
        """Seconds until a shared budget that has begun anew lets anything start; ``None`` when it does."""
        ...

    @property
    def where(self) -> str | None:
        """Name of a shared budget."""
        ...

    def catch_up(self) -> None:
        """Take in what other processes have said, where that takes no waiting."""

    def members(self) -> tuple[MemberSnapshot, ...]:
        """The processes that share it, and what each of them holds."""
        ...

    # its life

    async def join(self) -> None:
        """Begin to take part, where several processes share it."""

    def join_aside(self) -> None:
        """The same without waiting for it."""

    async def rest(self) -> None:
        """Take part no more until something is asked again: at a server's shutdown. Leases keep it in."""

    async def leave(self) -> None:
        """Take part no more, once the last lease has ended."""

    # one ticket

    def start(self, ticket: Ticket) -> bool:
        """Have ``ticket`` granted if that is known here and now; whether it was. Else nothing has changed."""
        ...

    def ask(self, ticket: Ticket) -> bool:
        """Have ``ticket`` granted, refused or put into the queue: see its state. Whether it starts now."""
        ...

    async def may_start(self, ticket: Ticket) -> bool:
        """Whether the work of a granted ``ticket`` may begin now, after it has waited."""
        ...

    def release(self, ticket: Ticket) -> None:
        """End ``ticket``, wherever it is in its life; ending it again changes nothing."""

    def release_in_turn(self, ticket: Ticket) -> float:
        """The same for one who has the turn; the ledger's time."""
        ...

    def force(self, ticket: Ticket) -> None:
        """Hold ``ticket`` whether it fits or not: for watching without deciding."""

    def change(self, ticket: Ticket, size: int) -> None:
        """Make a held ticket ``size`` bytes large, whether that fits or not; see ``may_resize``."""

    def grow(self, ticket: Ticket, size: int) -> Answer:
        """The same where it fits now; whether it did. ``None``: a shared budget can't be reached.

        It never waits. Where nobody waits for the answer any more, ``change`` takes it back.
        """
        ...

    # the whole

    def closed_by_others(self) -> Verdict | None:
        """Why nothing may start, where guards of other processes are the reason."""
        ...

    def resize(self, capacity: int) -> None:
        """A new capacity for each device. Those who wait and can never fit now are refused."""

    def drain(self) -> None:
        """Let nothing into this process from now on, and refuse all who wait in it."""
