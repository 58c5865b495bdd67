"""What OpenTelemetry gets: span events, and metrics by the semantic conventions."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider

from gpu_admission import Admission, DeviceReading, Estimate, TooLarge
from gpu_admission.devices import FixedDevice
from gpu_admission.observe import OpenTelemetry
from gpu_admission.types import DeviceSnapshot
from tests.observe.events import event

pytestmark = pytest.mark.anyio

GIB = 2**30


class Gpu:
    """A device that knows something."""

    name = "H200 (cuda:0)"
    key = "GPU-1"

    def __init__(self, reading: DeviceReading) -> None:
        self._reading = reading

    def read(self) -> DeviceReading:
        return self._reading


@pytest.fixture
def reader() -> Iterator[InMemoryMetricReader]:
    reader = InMemoryMetricReader()
    yield reader
    reader.shutdown()


def observed(reader: InMemoryMetricReader, **settings: Any) -> tuple[Admission, OpenTelemetry]:
    telemetry = OpenTelemetry(meter_provider=MeterProvider([reader]))
    options: dict[str, Any] = {"capacity": "20GiB", "estimator": 1, "timeout": 0}
    return Admission(observers=[telemetry], **(options | settings)), telemetry


def points(reader: InMemoryMetricReader, name: str) -> Sequence[tuple[float, Mapping[str, Any]]]:
    """Value (sum, of a histogram) and attributes of each point of a metric."""
    data = reader.get_metrics_data()
    metrics = data.resource_metrics[0].scope_metrics[0].metrics if data else []
    found: list[tuple[float, Mapping[str, Any]]] = []
    for metric in metrics:
        if metric.name == name:
            for point in metric.data.data_points:
                value = point.value if isinstance(point, NumberDataPoint) else point.sum
                found.append((value, dict(point.attributes or {})))
    return found


async def test_what_happens_is_marked_on_the_span_of_the_request(reader: InMemoryMetricReader) -> None:
    admission, _ = observed(reader)
    tracer = TracerProvider().get_tracer("test")
    with tracer.start_as_current_span("POST /generate") as span:
        async with admission.lease("6GiB"):
            pass
        with pytest.raises(TooLarge):
            await admission.lease("21GiB").__aenter__()
    assert isinstance(span, ReadableSpan)
    admitted, refused = span.events
    assert (admitted.name, refused.name) == ("gpu_admission.admitted", "gpu_admission.refused")
    assert dict(admitted.attributes or {}) | {"gpu_admission.lease": 0} == {
        "gpu_admission.budget": "default",
        "gpu_admission.lane": "default",
        "gpu_admission.bytes": 6 * GIB,
        "gpu_admission.wait": 0.0,
        "gpu_admission.lease": 0,
    }
    assert (refused.attributes or {})["gpu_admission.reason"] == "too_large"


async def test_without_a_span_nothing_is_marked(reader: InMemoryMetricReader) -> None:
    admission, _ = observed(reader)
    assert not trace.get_current_span().is_recording()
    async with admission.lease("6GiB") as lease:
        assert lease.bytes == 6 * GIB


async def test_requests_and_leases_are_counted(reader: InMemoryMetricReader) -> None:
    admission, telemetry = observed(reader)
    async with admission.lease("6GiB") as lease:
        lease.record_peak(4 * GIB)
    telemetry(event("refused", reason="queue_full", lease=0))
    telemetry.flush()
    lane = {"gpu_admission.budget": "default", "gpu_admission.lane": "default"}
    admitted = {"gpu_admission.outcome": "admitted", "gpu_admission.reason": "", "http.route": "lease"}
    refused = {"gpu_admission.outcome": "refused", "gpu_admission.reason": "queue_full"}
    assert points(reader, "gpu_admission.requests") == [
        (1, lane | admitted),
        (1, lane | refused | {"http.route": "/generate"}),
    ]
    assert points(reader, "gpu_admission.leases.ended") == [(1, lane | {"gpu_admission.outcome": "ok"})]
    assert points(reader, "gpu_admission.lease.estimate") == [(6 * GIB, lane)]
    assert points(reader, "gpu_admission.lease.peak") == [(4 * GIB, lane)]


async def test_what_is_held_is_observed_when_it_is_asked_for(reader: InMemoryMetricReader) -> None:
    admission, _ = observed(reader)
    held = await admission.entrance.acquire(Estimate(6 * GIB))
    device = {"gpu_admission.budget": "default", "hw.name": "device"}
    assert points(reader, "gpu_admission.in_use") == [(6 * GIB, device)]
    assert points(reader, "gpu_admission.capacity") == [(20 * GIB, device)]
    held.release()
    assert points(reader, "gpu_admission.in_use") == [(0, device)]
    assert [value for value, _ in points(reader, "gpu_admission.waiting")] == [0]


async def test_a_gpu_is_told_by_the_conventions_and_what_is_unknown_is_not(
    reader: InMemoryMetricReader,
) -> None:
    gpu = Gpu(DeviceReading(total=100, used=70, temperature=65.0))
    admission, _ = observed(reader, capacity=50, devices=[gpu, FixedDevice(50)])
    seen = DeviceSnapshot(gpu.name, 50, 0, None, None, "", gpu.read(), 0.1)
    unread = DeviceSnapshot("fixed", 50, 0, None, None, "", None, None)
    snapshot = msgspec.structs.replace(admission.snapshot(), devices=(seen, unread))
    admission.snapshot = lambda: snapshot  # type: ignore[method-assign]
    labels = {"hw.id": "GPU-1", "hw.name": "H200 (cuda:0)", "hw.type": "gpu"}
    assert points(reader, "hw.gpu.memory.limit") == [(100, labels)]
    assert points(reader, "hw.gpu.memory.usage") == [(70, labels)]
    assert points(reader, "hw.temperature") == [(65.0, labels)]
    assert points(reader, "hw.gpu.utilization") == []


def test_before_it_observes_somebody_there_is_nothing_to_tell(reader: InMemoryMetricReader) -> None:
    OpenTelemetry(meter_provider=MeterProvider([reader]))
    assert points(reader, "gpu_admission.in_use") == []


def test_one_is_for_one_admission(reader: InMemoryMetricReader) -> None:
    _, telemetry = observed(reader)
    with pytest.raises(ValueError, match="make another one"):
        Admission(capacity=1, estimator=1, observers=[telemetry])


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **options: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ImportError(name)
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"gpu-admission\[otel\]"):
        OpenTelemetry()
