"""``OpenTelemetry``: a span event for each decision, and metrics, named by the semantic conventions.

Owns the OpenTelemetry side; it needs the extra ``otel`` (the API only: the app chooses the
SDK and where things are sent). Device metrics have the names of ``hw.gpu.*``; metrics for which
the conventions have no name begin with ``gpu_admission.``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gpu_admission.observe.backlog import Backlog
from gpu_admission.observe.routelabel import shown
from gpu_admission.types import DeviceReading, Event, Snapshot

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter, MeterProvider

    from gpu_admission.admission import Admission

_SPAN_EVENTS = ("admitted", "refused", "disconnected", "shadow")
_NO_GPU = ("host", "fixed:")


class OpenTelemetry:
    """``Admission(observers=[OpenTelemetry()])``: events on the current span, and metrics.

    ``meter_provider`` is the global one if ``None``. Raises ``ImportError`` without
    ``opentelemetry-api``.
    """

    def __init__(self, *, meter_provider: MeterProvider | None = None) -> None:
        try:
            from opentelemetry import metrics, trace
        except ImportError:
            raise ImportError(
                "OpenTelemetry needs opentelemetry-api: pip install 'gpu-admission[otel]'"
            ) from None
        self._metrics: Any = metrics
        self._current_span = trace.get_current_span
        meter = metrics.get_meter("gpu_admission", meter_provider=meter_provider)
        self._count_instruments(meter)
        self._observed_instruments(meter)
        self._backlog = Backlog(self._work)

    def _count_instruments(self, meter: Meter) -> None:
        self._requests = meter.create_counter(
            "gpu_admission.requests", "{request}", "Metered requests by what became of them."
        )
        self._ended = meter.create_counter("gpu_admission.leases.ended", "{lease}", "Leases by outcome.")
        self._wait = meter.create_histogram("gpu_admission.queue.duration", "s", "Time in the queue.")
        self._hold = meter.create_histogram(
            "gpu_admission.lease.duration", "s", "Time that a lease was held."
        )
        self._estimate = meter.create_histogram("gpu_admission.lease.estimate", "By", "Bytes charged.")
        self._peak = meter.create_histogram("gpu_admission.lease.peak", "By", "Bytes really taken.")

    def _observed_instruments(self, meter: Meter) -> None:
        level, gauge = meter.create_observable_up_down_counter, meter.create_observable_gauge
        level("gpu_admission.in_use", [self._of_devices("in_use")], "By", "Bytes that leases hold.")
        level("gpu_admission.capacity", [self._of_devices("capacity")], "By", "Bytes they may hold.")
        level("gpu_admission.waiting", [self._of_lanes("waiting")], "{request}", "Requests in the queue.")
        level("hw.gpu.memory.limit", [self._of_readings("total")], "By", "Size of the GPU memory.")
        level("hw.gpu.memory.usage", [self._of_readings("used")], "By", "GPU memory used.")
        gauge("hw.gpu.utilization", [self._of_readings("utilization")], "1", "Share of time that it is busy.")
        gauge("hw.temperature", [self._of_readings("temperature")], "Cel", "Temperature of the GPU.")

    def watch(self, admission: Admission) -> None:
        """Called by the admission that it observes; make one observer for each."""
        if getattr(self, "_admission", admission) is not admission:
            raise ValueError("an OpenTelemetry observes one Admission: make another one")
        self._admission = admission
        self._name = admission.settings.name

    def __call__(self, event: Event) -> None:
        if event.kind == "started":
            self._backlog.start()
        elif event.kind in _SPAN_EVENTS:
            self._mark(event)
        self._backlog.add(event)
        if event.kind == "released" and self._admission.locked.is_closed:
            self._backlog.hurry()  # a process that leaves may end any moment

    def _mark(self, event: Event) -> None:
        span = self._current_span()
        if not span.is_recording():
            return
        attributes: dict[str, str | int | float] = {
            "gpu_admission.budget": self._name,
            "gpu_admission.lane": event.lane,
            "gpu_admission.bytes": event.bytes,
            "gpu_admission.wait": event.waited,
        }
        if event.reason:
            attributes["gpu_admission.reason"] = event.reason
        if event.lease:
            attributes["gpu_admission.lease"] = event.lease
        span.add_event(f"gpu_admission.{event.kind}", attributes)

    # metrics

    def flush(self) -> None:
        """Count what has happened up to now; a thread does so every second."""
        self._backlog.work_off()

    def _work(self, events: Sequence[Event]) -> None:
        for event in events:
            self._count(event)

    def _count(self, event: Event) -> None:
        labels = {"gpu_admission.budget": self._name, "gpu_admission.lane": event.lane}
        if event.kind == "released":
            self._ended.add(1, labels | {"gpu_admission.outcome": event.outcome})
            self._hold.record(event.held, labels)
            if event.actual is not None:
                self._peak.record(event.actual, labels)
        elif event.kind in _SPAN_EVENTS:
            outcome = {"gpu_admission.outcome": event.kind, "gpu_admission.reason": event.reason}
            self._requests.add(1, labels | {"http.route": shown(event.route)} | outcome)
            if event.lease:
                self._wait.record(event.waited, labels)
                self._estimate.record(event.bytes, labels)

    def _observed(self, rows: Callable[[Snapshot], Iterator[tuple[Any, dict[str, str]]]]) -> Any:
        """A callback of an instrument: ``rows`` of the snapshot, without those that are unknown."""

        def callback(options: object) -> Iterator[Any]:
            if not hasattr(self, "_admission"):
                return
            for value, attributes in rows(self._admission.snapshot()):
                if value is not None:
                    yield self._metrics.Observation(value, attributes)

        return callback

    def _of_devices(self, field: str) -> Any:
        def rows(snapshot: Snapshot) -> Iterator[tuple[Any, dict[str, str]]]:
            for device in snapshot.devices:
                attributes = {"gpu_admission.budget": self._name, "hw.name": device.name}
                yield getattr(device, field), attributes

        return self._observed(rows)

    def _of_lanes(self, field: str) -> Any:
        def rows(snapshot: Snapshot) -> Iterator[tuple[Any, dict[str, str]]]:
            for lane in snapshot.lanes:
                attributes = {"gpu_admission.budget": self._name, "gpu_admission.lane": lane.name}
                yield getattr(lane, field), attributes

        return self._observed(rows)

    def _of_readings(self, field: str) -> Any:
        def rows(snapshot: Snapshot) -> Iterator[tuple[Any, dict[str, str]]]:
            for device, known in zip(self._admission.monitor.devices, snapshot.devices, strict=False):
                if not device.key.startswith(_NO_GPU):
                    reading = known.reading or DeviceReading()
                    yield (
                        getattr(reading, field),
                        {
                            "hw.id": device.key,
                            "hw.name": known.name,
                            "hw.type": "gpu",
                        },
                    )

        return self._observed(rows)
