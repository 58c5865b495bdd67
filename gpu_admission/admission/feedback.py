"""What a request really took, told to the estimator that charged it.

Owns one request's lesson for an estimator that has ``observe`` (``Learned``): the peak that the
app recorded, or one measured here while the request ran alone. What is made of it is the
estimator's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpu_admission.budget.ledger import Ledger
from gpu_admission.request import RequestInfo
from gpu_admission.types import Estimate

if TYPE_CHECKING:
    from gpu_admission.admission.lease import Lease


class Lesson:
    """From the grant of one lease to its end. ``estimator`` has ``observe`` and ``route_of``."""

    def __init__(self, estimator: Any, info: RequestInfo, estimate: Estimate, ledger: Ledger) -> None:
        self._estimator = estimator
        self._route = estimator.route_of(info)
        self._estimate = estimate
        self._ledger = ledger
        self._grants = ledger.grants
        self._meter = estimator.meter if ledger.running == 1 else None
        self._before = self._meter.start() if self._meter else 0

    def end(self, lease: Lease) -> None:
        """Tell the estimator, where the work ended well and its peak is known."""
        peak = lease.peak
        if peak is None and self._meter and self._ledger.grants == self._grants:
            # Nobody started beside it: what the device saw was this request's.
            peak = self._meter.peak() - self._before
        if peak is not None and lease.outcome[0] == "ok":
            self._estimator.observe(self._route, self._estimate, peak)
