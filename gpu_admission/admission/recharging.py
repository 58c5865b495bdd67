"""Charges of requests that wait follow what their estimator learns meanwhile.

Owns who waits with a charge that may become another, and when they are asked for again. What is charged is
up to the estimator, and who may start up to the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from gpu_admission.admission.seam import Budget
from gpu_admission.budget.ticket import GRANTED, WAITING, Ticket
from gpu_admission.estimators.taken import moved
from gpu_admission.request import RequestInfo
from gpu_admission.runtime.failure import log_failure
from gpu_admission.runtime.home import Home
from gpu_admission.runtime.loop import call_soon
from gpu_admission.types import Estimate

Again: TypeAlias = Callable[[], Estimate]
"""What a request is charged by what is known now."""


class Recharging:
    """Those who wait in one admission."""

    def __init__(self, locked: Budget, home: Home) -> None:
        self._locked = locked
        self._home = home
        self._waiting: dict[int, tuple[Ticket, Again]] = {}
        self._is_due = False

    @contextmanager
    def of(self, ticket: Ticket, again: Again) -> Iterator[None]:
        """While ``ticket`` waits, its charge follows what is learned."""
        if self._locked.may_resize:
            self._waiting[id(ticket)] = (ticket, again)
        try:
            yield
        finally:
            self._waiting.pop(id(ticket), None)

    def learned(self) -> None:
        """Something was learned: look at the charges soon, in the loop that is served. Takes no lock."""
        if self._waiting and not self._is_due:
            self._is_due = True
            self._is_due = call_soon(self._home.loop, self._look)

    def _look(self) -> None:
        self._is_due = False
        for ticket, again in list(self._waiting.values()):
            estimate = _asked(again)
            with self._locked:
                if estimate is not None and ticket.state is WAITING and estimate.bytes != ticket.bytes:
                    self._locked.change(ticket, estimate.bytes)

    def started(self, ticket: Ticket, before: Estimate, again: Again) -> Estimate:
        """What ``ticket``, which has been granted now, is charged: no more than it was granted with."""
        estimate = _asked(again) or before
        with self._locked:
            size = ticket.bytes
            if ticket.state is GRANTED and estimate.bytes < size:
                self._locked.change(ticket, estimate.bytes)
                return estimate
        return moved(estimate, size, "waited", "")


def again_of(estimator: Any, info: RequestInfo, charged: Estimate) -> Again | None:
    """What says what ``info`` is charged from now on, where its ``estimator`` can say so."""
    again = getattr(estimator, "again", None)
    found: Again | None = None if again is None else again(info, charged)
    return found


def _asked(again: Again) -> Estimate | None:
    try:
        return again()
    except Exception as error:
        log_failure("a charge could not be renewed", error, "the earlier one stays")
        return None
