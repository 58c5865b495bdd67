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
from gpu_admission.runtime.failure import log_failure
from gpu_admission.types import Estimate


class Feedback:
    """From the grant of one lease to its end. ``estimator`` has ``observe`` and ``route_of``.

    What fails here, in a meter or an estimator of the user's, is logged and teaches nothing: the
    request holds its bytes by now, and must neither fail nor keep them by it.
    """

    def __init__(self, estimator: Any, info: RequestInfo, estimate: Estimate, budget: Budget) -> None:
        self._estimator = estimator
        self._estimate = estimate
        self._budget = budget
        self._grants = budget.ledger.grants
        self._meter: Any = None
        self._before = 0
        self._fails = False
        try:
            self._begin(info)
        except Exception as error:
            self._failed(error)

    def _begin(self, info: RequestInfo) -> None:
        self._route = self._estimator.route_of(info)
        meter = self._estimator.meter
        if meter and self._budget.ledger.running == 1:
            self._before = meter.start()
            self._meter = meter

    def end(self, peak: int | None, outcome: str) -> None:
        """Pass it on, where the work ended well and its ``peak`` is known; or that memory ran out."""
        if self._fails:
            return
        try:
            self._end(peak, outcome)
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self._fails = True
        name = type(self._estimator).__name__
        log_failure(f"{name!r} could not learn what a request took: it failed", error, "nothing is learned")

    def _end(self, peak: int | None, outcome: str) -> None:
        if peak is None and self._meter and self._budget.ledger.grants == self._grants:
            # Nothing started beside it: what the device saw was this request's.
            peak = self._meter.peak() - self._before
        if outcome == "oom" and hasattr(self._estimator, "ran_out"):
            self._estimator.ran_out()
        if peak is not None and outcome == "ok":
            self._estimator.observe(self._route, self._estimate, peak)


def bind(estimator: Estimator, capacity: Callable[[], int]) -> None:
    """Give ``capacity`` to an estimator that wants it (``Learned``)."""
    wants = getattr(estimator, "bind", None)
    if wants is not None:
        wants(capacity)
