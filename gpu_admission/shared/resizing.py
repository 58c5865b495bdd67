"""Changing the size of a ticket that is held: what the log is told, and its answer once that was read.

Owns which size this process has told last, where it has not come back yet, and when the answer to
growth is yes, no, or that nobody can tell. Who waits for it, and for how long, is the caller's business;
whether it fits is the replica's.
"""

from __future__ import annotations

from functools import partial

from gpu_admission.budget.ticket import Ticket
from gpu_admission.runtime.answer import Answer
from gpu_admission.shared.membership import Membership
from gpu_admission.shared.operations import Change
from gpu_admission.shared.protocol import LogAway


class Resizing:
    """For the tickets of ``member``, in its turn. Nothing here waits."""

    def __init__(self, member: Membership) -> None:
        self._member = member

    def change(self, ticket: Ticket, size: int) -> None:
        """Have ``ticket`` hold ``size`` bytes, whether that fits or not."""
        own = self._member.own
        if ticket not in own:
            return
        mark = own.next_number()
        own.told[ticket.number] = mark, size
        own.when_back(mark, partial(self._is_known, ticket, mark, self._member.outbox.member))
        self._member.tell(Change(ticket.number, size), asks=(mark,))

    def grow(self, ticket: Ticket, size: int, answer: Answer) -> None:
        """The same where it fits; ``answer``: whether it did, ``None`` where the log can't be reached."""
        member, own = self._member, self._member.own
        if member.away is not None or ticket not in own:
            answer.give(None if member.away is not None else False)
            return
        mark = own.next_number()
        own.when_back(mark, partial(self._has_grown, ticket, size, answer, mark, member.outbox.member))
        try:
            member.append(Change(ticket.number, size, must_fit=True), asks=(mark,))
        except LogAway:
            answer.give(None)
            own.back((mark,))

    def _has_grown(self, ticket: Ticket, size: int, answer: Answer, mark: int, said_by: str) -> None:
        fits = ticket.bytes >= size
        answer.give(fits if self._was_read(said_by) else None)
        if fits:
            self._is_known(ticket, mark, said_by)

    def _is_known(self, ticket: Ticket, mark: int, said_by: str) -> None:
        """What was told up to ``mark`` has come back: only what was told later is on its way."""
        told = self._member.own.told
        if self._was_read(said_by) and mark >= told.get(ticket.number, (mark,))[0]:
            told.pop(ticket.number, None)

    def _was_read(self, said_by: str) -> bool:
        """Whether what is reported as back was read while this process took part, or can't come any more."""
        member = self._member
        return member.away is None and said_by == member.outbox.member in member.replica.members.living
