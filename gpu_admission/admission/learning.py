"""An admission's learning estimators: what they are given, and how processes tell each other.

Owns no statistics and no file: statistics belong to the estimators, the file to ``kept``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gpu_admission.admission.feedback import bind
from gpu_admission.admission.seam import Budget
from gpu_admission.settings import Settings
from gpu_admission.shared.gossip import Gossip, Record, Use
from gpu_admission.types import Device


class Learning:
    """Looks after the estimators in ``named``, pairs of the name in the settings and the estimator."""

    def __init__(self, named: Sequence[tuple[str, Any]]) -> None:
        self._named = named
        self._sharers = {name: each for name, each in named if hasattr(each, "share")}
        self._gossip: Gossip | None = None

    def begin(
        self,
        capacity: Callable[[], int],
        devices: Callable[[], Sequence[Device]],
        learned: Callable[[], object],
    ) -> None:
        """Give each what it needs from the admission; see ``bind``."""
        for _, each in self._named:
            bind(each, capacity, devices, learned)

    def shared(self, use: Use) -> Gossip:
        """What this process tells others that share its budget: ``use()``, and what it learns from now on."""
        self._gossip = Gossip(use, self._hear)
        for name, each in self._sharers.items():
            each.share(partial(self._say, name))
        return self._gossip

    def _say(self, name: str, record: Record) -> None:
        if self._gossip is not None:
            self._gossip.say((name, *record))

    def _hear(self, record: Record) -> None:
        learner = self._sharers.get(record[0]) if record and isinstance(record[0], str) else None
        if learner is not None:
            learner.hear(record[1:])


def startable(settings: Settings, budget: Budget) -> int:
    """Bytes of the largest request that could start now in any lane, were nothing else running."""
    ledger = budget.ledger
    lanes = range(1 if settings.lane is None else len(settings.lanes))
    largest = min(ledger.largest(lane) for lane in lanes)
    allowed = max(account.limit for account in ledger.accounts)
    return min(largest, allowed) if allowed else largest
