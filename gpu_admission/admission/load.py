"""What each answer tells a load balancer: how full the budget is, how many wait, how busy it has been.

Owns the figures and the text form of the ORCA load report (``xds.data.orca.v3.OrcaLoadReport``), as
Envoy and Google's load balancers read it. Which answers carry it is decided where they are sent.
"""

from __future__ import annotations

import math
from typing import Final

from gpu_admission.admission.seam import Budget
from gpu_admission.runtime import clock

HEADER: Final = "endpoint-load-metrics"
_SECONDS: Final = 10.0
"""Seconds for which a request counts in the rates, roughly."""


class LoadReport:
    """The load of one admission. Each report counts as one request that was answered."""

    def __init__(self, locked: Budget) -> None:
        self._locked = locked
        self._requests = _Rate()
        self._errors = _Rate()

    def header(self, status: int) -> str:
        """The value of the header of an answer with ``status``; 429 and 5xx count as errors.

        What a guard withholds counts as taken; a budget that is drained, or not measured yet, counts as
        full. With a queue, ``application_utilization`` goes above 1.
        """
        now = clock.monotonic()
        with self._locked as ledger:
            capacity, asked = max(1, ledger.capacity), ledger.waiting_bytes
            waiting, running = ledger.waiting, ledger.running
            free = sum(max(0, account.limit - account.in_use) for account in ledger.accounts)
            requests = self._requests.count(now, 1)
            errors = self._errors.count(now, int(status == 429 or status >= 500))
        free = 0 if self._locked.is_closed else free
        taken = 1 - free / capacity
        return (
            f"TEXT mem_utilization={taken:.4f},application_utilization={taken + asked / capacity:.4f},"
            f"rps_fractional={requests:.3f},eps={errors:.3f},"
            f"named_metrics.num_requests_waiting={waiting},named_metrics.num_requests_running={running},"
            f"named_metrics.available_bytes={free}"
        )


class _Rate:
    """Recent events per second, weighted by age; not too low even in the first seconds."""

    def __init__(self) -> None:
        self._began = self._at = -math.inf
        self._sum = 0.0

    def count(self, now: float, times: int) -> float:
        """The rate after ``times`` more events at ``now``."""
        if self._began == -math.inf:
            self._began = self._at = now
        self._sum = self._sum * math.exp((self._at - now) / _SECONDS) + times
        self._at = now
        seen = max(1.0, now - self._began)
        return self._sum / (_SECONDS * -math.expm1(-seen / _SECONDS))
