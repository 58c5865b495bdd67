"""``Metrics``: the Prometheus side of an admission. What an event counts, and what is measured now.

An observer that only notes events; they are counted in a thread, or when somebody scrapes
in this process. The metric objects themselves are in ``families``, serving them in
``scrape``.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from gpu_admission.errors import REASONS
from gpu_admission.observe.backlog import Backlog
from gpu_admission.observe.families import Families
from gpu_admission.observe.routelabel import UNMATCHED
from gpu_admission.observe.speaker import running_here, speaks_for, without_totals
from gpu_admission.types import DeviceSnapshot, Event

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Gauge

    from gpu_admission.admission import Admission

_MOST_ROUTES = 50
_OUTCOMES = ("ok", "error", "oom", "fault", "client")


class Metrics:
    """``Admission(observers=[Metrics()])``: Prometheus metrics in ``registry``, the default one if ``None``.

    Make one for each admission; the label ``budget``, the setting ``name``, tells budgets apart.
    Where ``PROMETHEUS_MULTIPROC_DIR`` is set, it works with several processes.
    Raises ``ImportError`` without ``prometheus-client``.
    """

    def __init__(self, *, registry: CollectorRegistry | None = None) -> None:
        import prometheus_client

        self.registry = prometheus_client.REGISTRY if registry is None else registry
        self._families = Families.of(self.registry)
        self._backlog = Backlog(self._work)
        self._add = self._backlog.add
        self._seen: dict[tuple[str, ...], Callable[[float], None]] = {}
        self._routes: dict[str, str] = {"*": UNMATCHED}
        self._guards: set[tuple[str, str]] = set()
        self._is_prepared = False

    def watch(self, admission: Admission) -> None:
        """Called by the admission that it observes."""
        if getattr(self, "_admission", admission) is not admission:
            raise ValueError("a Metrics observes one Admission: make another one (they share their registry)")
        self._admission = admission
        self._name = admission.settings.name
        self._families.show(self._name, self)

    def __call__(self, event: Event) -> None:
        self._add(event)
        if event.kind == "started":
            self._backlog.start()
        elif event.kind == "released" and self._admission.locked.is_closed:
            self._backlog.hurry()  # a process that leaves may end any moment

    def flush(self) -> None:
        """Count what has happened up to now; a thread does so every second."""
        self._backlog.work_off()

    def refresh(self) -> None:
        """Count what has happened, and measure what is."""
        self._backlog.work_off()

    def _work(self, events: Sequence[Event]) -> None:
        counts: Counter[tuple[str, ...]] = Counter()
        self._prepare()
        for event in events:
            if event.kind == "started":
                self._families.works(self._name, self)
            self._count(event, counts)
        for key, times in counts.items():
            self._child(key, "inc")(times)
        if self._families.shown(self._name) is self:
            self._measure(self._admission)

    # what has happened

    def _prepare(self) -> None:
        """Counters that alerts look at begin at 0, so that even the first increase is seen."""
        if self._is_prepared:
            return
        self._is_prepared = True
        for reason in REASONS:
            self._child(("refusals", reason), "inc")
        self._families.leases_lost.labels(self._name)
        for lane in self._admission.lane_names:
            for outcome in _OUTCOMES:
                self._child(("leases_ended", lane, outcome), "inc")

    def _count(self, event: Event, counts: Counter[tuple[str, ...]]) -> None:
        kind, lane = event.kind, event.lane
        if kind == "released":
            counts["leases_ended", lane, event.outcome] += 1
            self._child(("hold", lane), "observe")(event.held)
            self._count_actual(event, counts)
        elif kind not in ("started", "resized"):
            counts["requests", self._route(event.route), lane, kind, event.reason] += 1
            if kind == "refused":
                counts["refusals", event.reason] += 1
            if kind in ("admitted", "shadow"):
                self._child(("wait", lane), "observe")(event.waited)
                self._child(("estimate", lane), "observe")(event.bytes)

    def _count_actual(self, event: Event, counts: Counter[tuple[str, ...]]) -> None:
        actual, estimate = event.actual, event.estimate
        if actual is None:
            return
        self._child(("peak", event.lane), "observe")(actual)
        if actual and estimate is not None:
            self._child(("ratio", event.lane), "observe")(estimate.bytes / actual)
            counts["estimated", self._route(event.route)] += estimate.bytes
            counts["actual", self._route(event.route)] += actual

    def _child(self, key: tuple[str, ...], method: str) -> Callable[[float], None]:
        """``method`` of a child; ``key`` is its family's attribute, then its labels without ``budget``."""
        known = self._seen.get(key)
        if known is None:
            family, *labels = key
            child = getattr(self._families, family).labels(self._name, *labels)
            known = self._seen[key] = getattr(child, method)
        return known

    def _route(self, route: str) -> str:
        """The label for a route pattern. If ever new names come, all further ones share one series."""
        if route not in self._routes:
            if len(self._routes) >= _MOST_ROUTES:
                return "other"
            self._routes[route] = route
        return self._routes[route]

    # what is

    def _measure(self, admission: Admission) -> None:
        families, snapshot = self._families, admission.snapshot()
        if not speaks_for(snapshot):
            snapshot = without_totals(snapshot)
        for lane in snapshot.lanes:
            families.lane_in_use.labels(self._name, lane.name).set(lane.in_use)
            families.waiting.labels(self._name, lane.name).set(lane.waiting)
            families.waiting_bytes.labels(self._name, lane.name).set(lane.waiting_bytes)
        families.running.labels(self._name).set(running_here(snapshot))
        families.buffered.labels(self._name).set(snapshot.buffered_bytes)
        if snapshot.shared is not None:
            families.away.labels(self._name).set(snapshot.away is not None)
        if not admission.monitor.is_measured:
            # By then devices have their names: a series under an earlier name would stay.
            return
        for device in snapshot.devices:
            self._measure_device(device)

    def _measure_device(self, device: DeviceSnapshot) -> None:
        families, labels = self._families, (self._name, device.name)
        ceiling = device.capacity if device.ceiling is None else min(device.ceiling, device.capacity)
        families.capacity.labels(*labels).set(device.capacity)
        families.ceiling.labels(*labels).set(ceiling)
        families.in_use.labels(*labels).set(device.in_use)
        families.breaker_open.labels(*labels).set(device.ceiling == 0)
        families.restart_needed.labels(*labels).set(device.restart_only)
        if device.closed_by:
            self._guards.add((device.name, device.closed_by))
        for name, guard in self._guards:
            if name == device.name:
                families.limited_by.labels(*labels, guard).set(device.closed_by == guard)
        self._measure_reading(device, labels)

    def _measure_reading(self, device: DeviceSnapshot, labels: Sequence[str]) -> None:
        reading, families = device.reading, self._families
        if reading is None:
            return
        read_at = None if device.reading_age is None else time.time() - device.reading_age
        values: Iterable[tuple[Gauge, float | None]] = (
            (families.device_total, reading.total),
            (families.device_used, reading.used),
            (families.device_free, reading.free),
            (families.device_foreign, reading.foreign),
            (families.device_temperature, reading.temperature),
            (families.device_utilization, reading.utilization),
            (families.device_read_at, read_at),
        )
        for gauge, value in values:
            # Unknown is NaN, never zero: no comparison holds for it.
            gauge.labels(*labels).set(math.nan if value is None else value)
