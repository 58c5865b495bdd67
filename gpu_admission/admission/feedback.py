"""What a request really took, as feedback for the estimator that charged it.

Owns one request's measurement for an estimator that follows requests (``Learned``): the peak that
the app recorded, or one measured here while the request ran alone; and what its answer said. What
follows from it is up to the estimator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from gpu_admission.admission.seam import Budget
from gpu_admission.estimators.taken import used
from gpu_admission.request import Estimator, RequestInfo
from gpu_admission.runtime.failure import log_failure
from gpu_admission.types import Device, Estimate, Usage


class Heard(Protocol):
    """An answer on its way to the client."""

    pieces: int
    """Messages so far."""
    usage: Usage | None
    """The usage that the whole answer reports."""


class Feedback:
    """From the grant of one lease to its end. ``estimator`` has ``follow``, ``ended`` and ``meter``.

    When a user's meter or estimator fails here, that is logged and nothing is learned: the request
    already holds its bytes, and must neither fail nor keep them because of it.
    """

    answer: Heard | None = None
    """Its answer, where that is looked at."""
    actual: int | None = None
    """Bytes that the request took: recorded, measured, or of the tokens that its answer reports."""

    def __init__(self, estimator: Any, info: RequestInfo, estimate: Estimate, budget: Budget) -> None:
        self._estimator = estimator
        self._budget = budget
        self._grants = budget.ledger.grants
        self._meter: Any = None
        self._before = 0
        self._fails = False
        try:
            self._begin(info, estimate)
        except Exception as error:
            self._failed(error)

    def _begin(self, info: RequestInfo, estimate: Estimate) -> None:
        self._request = self._estimator.follow(info, estimate)
        meter = self._estimator.meter
        if meter and self._budget.ledger.running == 1 and getattr(self._request, "measure", True):
            self._before = meter.start()
            self._meter = meter

    def end(self, peak: int | None, outcome: str) -> None:
        """Pass it on, where its ``peak`` or its answer is known, or memory ran out."""
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
        answer = self.answer
        usage, pieces = (None, None) if answer is None else (answer.usage, answer.pieces)
        self._estimator.ended(self._request, outcome, peak=peak, usage=usage, pieces=pieces)
        if peak is not None:
            self.actual = max(0, peak)
        elif usage is not None:
            self.actual = used(self._estimator, self._request, usage)


def bind(
    estimator: Estimator,
    capacity: Callable[[], int],
    devices: Callable[[], Sequence[Device]] = tuple,
    learned: Callable[[], object] | None = None,
) -> None:
    """Give ``capacity`` to an estimator that wants it (``Learned``), and ``devices`` to its meter.

    It is to call ``learned()``, from any thread, when those who wait might be charged otherwise from now on.
    """
    announce = getattr(estimator, "announce", None)
    if announce is not None and learned is not None:
        announce(learned)
    wants = getattr(estimator, "bind", None)
    if wants is not None:
        wants(capacity)
    watch = getattr(getattr(estimator, "meter", None), "watch", None)
    if watch is not None:
        watch(devices)
