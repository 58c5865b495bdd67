"""Host memory that waiting bodies hold."""

from __future__ import annotations

import pytest

from gpu_admission.admission.buffered import BufferedBytes
from gpu_admission.errors import QueueFull


def test_bodies_are_counted_up_to_the_limit() -> None:
    buffer = BufferedBytes(100)
    buffer.take(60)
    buffer.take(40)
    with pytest.raises(QueueFull, match="max_buffered_bytes=100 B") as refused:
        buffer.take(1)
    assert refused.value.reason == "queue_full"
    assert buffer.held == 100
    buffer.give(60)
    buffer.take(1)
    assert buffer.held == 41


def test_what_is_unpacked_in_threads_counts_too() -> None:
    buffer = BufferedBytes(100)
    buffer.take(30)
    buffer.take_unpacked(70)
    with pytest.raises(QueueFull):
        buffer.take(1)
    with pytest.raises(QueueFull, match="max_buffered_bytes"):
        buffer.take_unpacked(1)
    buffer.take_unpacked(-70)
    assert buffer.unpacking == 0
    buffer.take(70)
