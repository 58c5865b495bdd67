"""Host memory that waiting bodies hold."""

from __future__ import annotations

import pytest

from gpu_admission.admission.buffered import BufferedBytes, Copies
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
    buffer.change_copies(70)
    with pytest.raises(QueueFull):
        buffer.take(1)
    with pytest.raises(QueueFull, match="max_buffered_bytes"):
        buffer.change_copies(1)
    buffer.change_copies(-70)
    assert buffer.unpacking == 0
    buffer.take(70)


def test_copies_are_counted_until_they_are_forgotten() -> None:
    buffer = BufferedBytes(100)
    with Copies(buffer) as copies:
        copies.take(60)
        copies.take(40)
        with pytest.raises(QueueFull):
            copies.take(1)
        assert buffer.unpacking == 100
    assert buffer.unpacking == 0


def test_one_client_address_cannot_hold_all_of_it() -> None:
    buffer = BufferedBytes(100)
    buffer.take(70, "a")
    assert (buffer.has_room(5, "a"), buffer.has_room(6, "a"), buffer.has_room(30, "b")) == (True, False, True)
    with pytest.raises(QueueFull, match=r"from this client address .* max_buffered_bytes=100 B"):
        buffer.take(6, "a")
    assert buffer.held == 70
    buffer.take(30, "b")
    buffer.give(70, "a")
    buffer.take(65, "a")
