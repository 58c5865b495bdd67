"""The names of all Prometheus metrics, and their client objects: one set for each registry.

Owns names, help texts, labels, buckets and how values of several processes are put
together. When they change is in ``metrics``. Every label has few values: the name of a
budget, a lane, a device or a guard, a route pattern, a reason.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

logger = logging.getLogger("gpu_admission")
_SECONDS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_BYTES = tuple(2.0**n for n in (26, 28, 30, 32, 34, 35, 36, 37, 38))
_RATIOS = (0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0)
_KEPT_AS = "_gpu_admission_families"


class Source(Protocol):
    """The source of one budget's numbers."""

    def refresh(self) -> None:
        """Bring the metrics up to date."""
        ...


class Families:
    """The metric objects of ``registry``. Make it with ``of``, which does not make a second one.

    It is itself a collector, without a metric: it is asked first, and then has the sources bring
    the others up to date.
    """

    @classmethod
    def of(cls, registry: CollectorRegistry) -> Families:
        """The metrics of ``registry``, made at the first call.

        They are kept on the registry itself, so that an app that is built twice finds them again, as
        does a module that is reloaded or imported under two names.
        """
        known: Families | None = getattr(registry, _KEPT_AS, None)
        if known is None:
            known = cls(registry)
            setattr(registry, _KEPT_AS, known)
        return known

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._sources: dict[str, weakref.ref[Source]] = {}
        self._working: dict[str, weakref.WeakSet[Source]] = {}
        registry.register(self)
        self._count()
        self._observe()
        self._gauge_budget()
        self._gauge_device()

    def show(self, budget: str, source: Source) -> None:
        """``source`` speaks for ``budget`` from now on: if an app was built again, the newer one does."""
        self._sources[budget] = weakref.ref(source)

    def works(self, budget: str, source: Source) -> None:
        """``source`` begins to count. Two that count under one name hide each other, so warn about that."""
        working = self._working.setdefault(budget, weakref.WeakSet())
        if any(other is not source for other in working):
            logger.warning(
                "two budgets in use are called %r: metrics show the newer one only",
                budget,
            )
        working.add(source)

    def shown(self, budget: str) -> Source | None:
        """Who speaks for ``budget``."""
        known = self._sources.get(budget)
        return None if known is None else known()

    def refresh(self) -> None:
        """Bring all metrics up to date, as far as this process knows."""
        for budget in list(self._sources):
            source = self.shown(budget)
            if source is not None:
                source.refresh()

    def collect(self) -> Sequence[Metric]:
        self.refresh()
        return ()

    def describe(self) -> Sequence[Metric]:
        return ()

    def _count(self) -> None:
        from prometheus_client import Counter

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"gpu_admission_{name}", text, ("budget", *labels), registry=self._registry)

        became = "Metered requests by what became of them: admitted, refused, disconnected or shadow."
        self.requests = counter("requests", became, "route", "lane", "outcome", "reason")
        refused = "Refused requests by their reason; each series begins at 0."
        self.refusals = counter("refusals", refused, "reason")
        ended = "Leases by how their work ended: ok, error, oom, fault or client."
        self.leases_ended = counter("leases_ended", ended, "lane", "outcome")
        self.leases_lost = counter("leases_lost", "Leases that were open in worker processes that died.")
        estimated = "What requests were charged, of those of which it is known what they took."
        self.estimated = counter("estimated_bytes", estimated, "route")
        actual = "What these took: recorded, measured, or of the tokens that the answer reports."
        self.actual = counter("actual_bytes", actual, "route")

    def _observe(self) -> None:
        from prometheus_client import Histogram

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            labels = ("budget", "lane")
            return Histogram(f"gpu_admission_{name}", text, labels, buckets=buckets, registry=self._registry)

        self.wait = histogram("queue_wait_seconds", "Time that admitted requests waited.", _SECONDS)
        self.hold = histogram("hold_seconds", "Time that leases were held.", _SECONDS)
        self.estimate = histogram("estimate_bytes", "What admitted requests were charged.", _BYTES)
        self.peak = histogram("peak_bytes", "What requests really took, where it is known.", _BYTES)
        self.ratio = histogram("estimate_to_peak_ratio", "Estimate divided by what it took.", _RATIOS)

    def _gauge_budget(self) -> None:
        from prometheus_client import Gauge

        def total(name: str, text: str, *labels: str) -> Gauge:
            labels = ("budget", *labels)
            return Gauge(
                f"gpu_admission_{name}", text, labels, registry=self._registry, multiprocess_mode="livesum"
            )

        self.capacity = total("capacity_bytes", "Bytes that leases may hold at once.", "device")
        self.ceiling = total("ceiling_bytes", "Bytes that leases may hold now, guards heeded.", "device")
        self.in_use = total("in_use_bytes", "Bytes that leases hold.", "device")
        self.lane_in_use = total("lane_in_use_bytes", "Bytes that leases of a lane hold.", "lane")
        self.waiting = total("waiting_requests", "Requests in the queue.", "lane")
        self.waiting_bytes = total("waiting_bytes", "Bytes that requests in the queue ask for.", "lane")
        self.running = total("running_requests", "Open leases.")
        self.buffered = total("buffered_body_bytes", "Host memory that bodies of waiting requests hold.")

        self.away = Gauge(
            "gpu_admission_shared_budget_away",
            "1 while a process of this host can't reach its shared budget.",
            ("budget",),
            registry=self._registry,
            multiprocess_mode="livemax",
        )

    def _gauge_device(self) -> None:
        from prometheus_client import Gauge

        def worst(name: str, text: str, *labels: str) -> Gauge:
            labels = ("budget", "device", *labels)
            return Gauge(
                f"gpu_admission_{name}", text, labels, registry=self._registry, multiprocess_mode="livemax"
            )

        def last(name: str, text: str) -> Gauge:
            return Gauge(
                f"gpu_admission_device_{name}",
                text,
                ("budget", "device"),
                registry=self._registry,
                multiprocess_mode="livemostrecent",
            )

        self.limited_by = worst("limited_by", "1 while this guard sets the ceiling.", "guard")
        self.breaker_open = worst("breaker_open", "1 while guards let nothing start on the device.")
        self.restart_needed = worst("restart_needed", "1 while only a restart would open the device.")
        self.device_total = last("memory_total_bytes", "Memory of the device.")
        self.device_used = last("memory_used_bytes", "Used on the device, by everyone.")
        self.device_free = last("memory_free_bytes", "Free on the device.")
        self.device_foreign = last("memory_foreign_bytes", "Used on the device by other processes.")
        self.device_temperature = last("temperature_celsius", "Temperature of the device.")
        self.device_utilization = last("utilization_ratio", "Utilization of the device, 0 to 1.")
        self.device_read_at = last("reading_timestamp_seconds", "When the device was last read, Unix time.")
