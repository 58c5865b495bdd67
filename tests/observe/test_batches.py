from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from gpu_admission.observe import BatchMetrics
from gpu_admission.serving import BatchEvent


def event(**changes: object) -> BatchEvent:
    values = {
        "batcher": "embed",
        "items": 3,
        "rows": 3,
        "bytes": 30,
        "padding": 0.25,
        "closed_by": "idle",
        "waited": 0.002,
        "seconds": 0.02,
        "outcome": "ok",
        **changes,
    }
    return BatchEvent(**values)  # type: ignore[arg-type]


def test_a_batch_counts_its_size_its_padding_and_why_it_closed() -> None:
    registry = CollectorRegistry()
    metrics = BatchMetrics(registry=registry)
    metrics(event())
    metrics(event(closed_by="bytes", outcome="oom", bytes=0))
    text = generate_latest(registry).decode()
    assert 'gpu_admission_batches_total{batcher="embed",closed_by="idle",outcome="ok"} 1.0' in text
    assert 'gpu_admission_batches_total{batcher="embed",closed_by="bytes",outcome="oom"} 1.0' in text
    assert 'gpu_admission_batch_items_sum{batcher="embed"} 6.0' in text
    assert 'gpu_admission_batch_padding_ratio_sum{batcher="embed"} 0.25' in text
    assert 'gpu_admission_batch_padding_ratio_count{batcher="embed"} 1.0' in text, (
        "without bytes none is known"
    )
    assert 'gpu_admission_batch_wait_seconds_count{batcher="embed"} 2.0' in text


def test_a_second_one_shares_the_registrys_metrics() -> None:
    registry = CollectorRegistry()
    for name in ("one", "two"):
        BatchMetrics(registry=registry)(event(batcher=name))
    text = generate_latest(registry).decode()
    assert 'gpu_admission_batch_items_count{batcher="one"} 1.0' in text
    assert 'gpu_admission_batch_items_count{batcher="two"} 1.0' in text
