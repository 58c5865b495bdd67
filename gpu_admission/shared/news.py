"""What others did to a shared budget, told once in this process's log: who is out, new capacities, a drain.

Owns the words, and that nothing is told twice. What it means for the budget is the replica's business.
"""

from __future__ import annotations

import logging

from gpu_admission.shared.members import Member, Resized
from gpu_admission.shared.process import process_of
from gpu_admission.shared.replica import Replica
from gpu_admission.shared.terms import format_each

logger = logging.getLogger("gpu_admission")


class News:
    """Of the budget at ``where``, for ``process``, which says itself what happens to it."""

    def __init__(self, where: str, process: str) -> None:
        self._where = where
        self._process = process
        self._read: Replica | None = None
        self._was_closed = False

    def tell(self, replica: Replica) -> None:
        """Log what is new. Of what was in the log when this process began to read, only a drain is."""
        lost, resized = replica.members.news()
        if replica is self._read:
            for member in filter(self._is_another, lost):
                self._tell_lost(member)
            if resized is not None and resized.is_new and self._is_another(resized.by):
                self._tell_resized(resized)
        self._read = replica
        is_closed = replica.ledger is not None and replica.ledger.closed
        if is_closed != self._was_closed:
            self._was_closed = is_closed
            self._tell_drain(is_closed)

    def _is_another(self, member: Member) -> bool:
        return process_of(member.name) != self._process

    def _tell_lost(self, member: Member) -> None:
        why = "its process has ended without leaving; its bytes are free"
        if member.until is not None:
            why = (
                "it was silent for longer than lease_ttl, or was evicted; its bytes are kept for half a "
                "lease_ttl, and if it still runs it comes back under a new name"
            )
        logger.warning(
            "%s (pid %d on %s, %d leases) is out of the shared budget %s: %s",
            member.name,
            member.pid,
            member.host,
            len(member.tickets),
            self._where,
            why,
        )

    def _tell_resized(self, resized: Resized) -> None:
        logger.warning(
            "%s (pid %d on %s) has resized the shared budget %s for all: capacity=%s now, %s before",
            resized.by.name,
            resized.by.pid,
            resized.by.host,
            self._where,
            format_each(resized.now),
            format_each(resized.before),
        )

    def _tell_drain(self, is_closed: bool) -> None:
        if is_closed:
            logger.warning(
                "the shared budget %s is drained: no process admits anything until an operator says "
                "gpu-admission budget drain --undo",
                self._where,
            )
        else:
            logger.warning("the shared budget %s admits again", self._where)
