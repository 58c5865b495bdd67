"""What a request really took, as feedback for the estimator that charged it.

Owns one request's measurement for an estimator that has ``observe`` (``Learned``): the peak that
the app recorded, or one measured here while the request ran alone. What is made of it is the
estimator's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpu_admission.admission.seam import Budget
from gpu_admission.request import Estimator, RequestInfo
from gpu_admission.types import Estimate


class Feedback:
    """From the grant of one lease to its end. ``estimator`` has ``observe`` and ``route_of``."""

    def __init__(self, estimator: Any, info: RequestInfo, estimate: Estimate, budget: Budget) -> None:
        self._estimator = estimator
        self._route = estimator.route_of(info)
        self._estimate = estimate
        self._budget = budget
        ledger = budget.ledger
        self._grants = ledger.grants
        self._meter = estimator.meter if ledger.running == 1 else None
        self._before = self._meter.start() if self._meter else 0

    def end(self, peak: int | None, *, well: bool) -> None:
        """Pass it on, where the work ended ``well`` and its ``peak`` is known."""
        if peak is None and self._meter and self._budget.ledger.grants == self._grants:
            # Nothing started beside it: what the device saw was this request's.
            peak = self._meter.peak() - self._before
        if peak is not None and well:
            self._estimator.observe(self._route, self._estimate, peak)


def bind(estimator: Estimator, capacity: Callable[[], int]) -> None:
    """Give ``capacity`` to an estimator that wants it (``Learned``)."""
    wants = getattr(estimator, "bind", None)
    if wants is not None:
        wants(capacity)
