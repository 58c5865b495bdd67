"""``BatchMetrics``: the Prometheus side of batchers. Owns what a batch counts; ``scrape`` serves it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_admission.serving.call import BatchEvent

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_ITEMS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_RATIOS = (0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
_SECONDS = (0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
_KEPT_AS = "_gpu_admission_batches"


class BatchMetrics:
    """``Batcher(..., observer=BatchMetrics())``: counts in ``registry``, the default one if ``None``.

    One object may observe several batchers: the label ``batcher``, their ``name``, tells them
    apart. Metrics are made once per registry. Raises ``ImportError`` without ``prometheus-client``.
    """

    def __init__(self, *, registry: CollectorRegistry | None = None) -> None:
        import prometheus_client

        registry = prometheus_client.REGISTRY if registry is None else registry
        known: _Families | None = getattr(registry, _KEPT_AS, None)
        if known is None:
            known = _Families(registry)
            setattr(registry, _KEPT_AS, known)
        self._families = known

    def __call__(self, event: BatchEvent) -> None:
        families, name = self._families, event.batcher
        families.batches.labels(name, event.closed_by, event.outcome).inc()
        families.items.labels(name).observe(event.items)
        families.wait.labels(name).observe(event.waited)
        families.seconds.labels(name).observe(event.seconds)
        if event.bytes:
            families.padding.labels(name).observe(event.padding)


class _Families:
    """The metric objects of one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        from prometheus_client import Counter, Histogram

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(
                f"gpu_admission_batch_{name}", text, ("batcher",), buckets=buckets, registry=registry
            )

        self.batches = Counter(
            "gpu_admission_batches",
            "Runs of a batcher's handler, by why the batch was not longer and how it ended.",
            ("batcher", "closed_by", "outcome"),
            registry=registry,
        )
        self.items = histogram("items", "Items of a batch.", _ITEMS)
        self.padding = histogram("padding_ratio", "Share of a batch's bytes that is padding.", _RATIOS)
        self.wait = histogram("wait_seconds", "Time that the oldest item of a batch waited.", _SECONDS)
        self.seconds = histogram("seconds", "Time of a run, the wait for its lease included.", _SECONDS)
