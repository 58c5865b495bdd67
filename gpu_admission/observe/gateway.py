"""The metrics by which the Gateway API inference extension chooses a server, under the names it reads.

Owns these three names, and how they follow from our own metrics; everything else that is scraped is
in ``scrape``. The extension's endpoint picker uses vLLM's names unless it is given others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

QUEUED = "vllm:num_requests_waiting"
RUNNING = "vllm:num_requests_running"
USAGE = "vllm:kv_cache_usage_perc"


class Collector(Protocol):
    def collect(self) -> Iterable[Metric]: ...


class WithGatewayNames:
    """All metrics of ``inner``, and after them the gateway's three: of all budgets in ``inner`` together."""

    def __init__(self, inner: Collector) -> None:
        self._inner = inner

    def describe(self) -> Sequence[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        found: defaultdict[str, float] = defaultdict(float)
        for metric in self._inner.collect():
            for sample in metric.samples:
                found[sample.name] += sample.value
            yield metric
        yield from _gateway(found)


def _gateway(found: Mapping[str, float]) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    capacity = found["gpu_admission_capacity_bytes"]
    free = max(0, found["gpu_admission_ceiling_bytes"] - found["gpu_admission_in_use_bytes"])
    for name, text, value in (
        (QUEUED, "Requests in the queue.", found["gpu_admission_waiting_requests"]),
        (RUNNING, "Open leases.", found["gpu_admission_running_requests"]),
        (USAGE, "Share of the capacity that can't be given out now, 0 to 1.", 1 - free / max(1, capacity)),
    ):
        yield GaugeMetricFamily(name, text, value=value)
