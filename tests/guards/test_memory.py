from __future__ import annotations

import copy
from typing import Any

import pytest

from gpu_admission.devices import empty_cache, measure
from gpu_admission.guards import MemoryGuard
from gpu_admission.guards.verdict import limit_of
from gpu_admission.types import DeviceReading


def reading(at: float = 0.0, **fields: Any) -> DeviceReading:
    """Of a device of 100 bytes of which 100 may be leased."""
    return DeviceReading(
        **{"total": 100, "used": 0, "ours": 0, "capacity": 100, "held": 0, "taken_at": at, **fields}
    )


def guard(**options: Any) -> MemoryGuard:
    return MemoryGuard(**{"watermark": 0, "reclaim": None, **options})


def test_nothing_was_read_yet() -> None:
    assert guard().ceiling((), (), 0.0) is None


def test_what_others_take_is_taken_off() -> None:
    memory = guard()
    assert memory.ceiling([reading()], (), 0.0) is None
    assert memory.reason == ""
    assert memory.ceiling([reading(), reading(used=30)], (), 0.0) == 70
    assert memory.reason == "other use of the device leaves 70 B for requests"


def test_our_running_requests_are_not_others() -> None:
    memory = guard()
    memory.ceiling([reading()], (), 0.0)
    busy = reading(used=40, ours=40, held=40)
    assert memory.ceiling([reading(), busy], (), 0.0) is None


def test_an_idle_service_with_a_full_cache_refuses_nobody() -> None:
    memory = guard(watermark="2%")
    memory.ceiling([reading(used=10, ours=10, reserved=10, allocated=10)], (), 0.0)
    cached = reading(used=99, ours=99, reserved=99, allocated=10)
    for _ in range(3):
        assert memory.ceiling([cached, cached], (), 0.0) == 90
    assert memory.reason == "other use of the device leaves 90 B for requests", "of which 10 are weights"


def test_an_idle_service_whose_cache_is_not_told_refuses_nobody_either() -> None:
    memory = guard(watermark="2%")
    memory.ceiling([reading()], (), 0.0)
    busy = reading(used=99, ours=99, held=99)
    memory.ceiling([reading(), busy], (), 0.0)
    idle = reading(used=99, ours=99)
    assert memory.ceiling([idle, idle], (), 0.0) is None


def test_in_a_container_that_tells_nothing_is_ours_our_cache_is_not_a_stranger() -> None:
    memory = guard()
    silent: dict[str, Any] = {"ours": None}
    memory.ceiling([reading(**silent)], (), 0.0)
    assert memory.ceiling([reading(used=60, held=60, **silent)] * 2, (), 0.0) is None
    assert memory.ceiling([reading(used=60, **silent)] * 2, (), 0.0) is None
    assert memory.ceiling([reading(used=80, **silent)] * 2, (), 0.0) == 80


def test_a_worse_reading_counts_at_once_and_a_better_one_when_confirmed() -> None:
    memory = guard()
    calm, busy = reading(), reading(used=75)
    assert memory.ceiling([calm], (), 0.0) is None
    assert memory.ceiling([calm, busy], (), 0.0) == 25
    assert memory.ceiling([calm, busy, calm], (), 0.0) == 25, "one good reading may be noise"
    assert memory.ceiling([calm, busy, calm, calm], (), 0.0) is None


def test_a_full_device_makes_requests_wait_and_is_not_closed() -> None:
    memory = guard()
    memory.ceiling([reading()], (), 0.0)
    assert memory.ceiling([reading(used=100)] * 2, (), 0.0) == 1


def test_below_the_watermark_no_more_is_held_than_is_held() -> None:
    memory = guard(watermark=10)
    memory.ceiling([reading(reserved=0, allocated=0)], (), 0.0)
    tight = reading(used=95, ours=95, reserved=95, allocated=95, held=60)
    assert memory.ceiling([tight], (), 0.0) == 60
    assert memory.reason == "5 B are free, below the watermark of 10 B"
    cached = reading(used=95, ours=95, reserved=95, allocated=60, held=60)
    assert memory.ceiling([cached, cached], (), 0.0) is None, "the cache is ours to use"


def test_the_watermark_is_of_no_use_where_the_cache_is_not_told() -> None:
    memory = guard(watermark=10)
    memory.ceiling([reading()], (), 0.0)
    assert memory.ceiling([reading(used=95, ours=95, held=95)], (), 0.0) is None


def test_the_terms_of_the_measured_capacity_are_kept_to() -> None:
    at_start = reading(used=20, ours=10, total=100)
    measured = measure(at_start, name="x", reserve=10, margin=0.1)
    assert measured.bytes == 63
    memory = guard()
    memory.begin(measured, overcommit=2.0)
    start = reading(used=20, ours=10, capacity=126)
    assert memory.ceiling([start], (), 0.0) is None
    assert memory.ceiling([start, reading(used=40, ours=10, capacity=126)], (), 0.0) == 90


def test_a_capacity_given_in_bytes_is_bounded_by_what_is_really_there() -> None:
    memory = guard()
    memory.begin(None)
    assert memory.ceiling([reading(total=80, used=60, capacity=60)], (), 0.0) == 20


def test_weights_that_come_later_are_resident_from_then_on() -> None:
    memory = guard()
    told = {"reserved": 0, "allocated": 0}
    memory.ceiling([reading(**told)], (), 0.0)
    loaded = reading(used=30, ours=30, reserved=30, allocated=30)
    assert memory.ceiling([reading(**told), loaded], (), 0.0) is None, "a lease may just have ended"
    assert memory.ceiling([loaded, loaded], (), 0.0) == 70


def test_an_idle_device_that_does_not_tell_what_is_free_teaches_nothing() -> None:
    memory = guard()
    told = {"reserved": 30, "allocated": 30}
    memory.ceiling([reading(used=30, ours=30, **told)], (), 0.0)
    blank = reading(used=None, ours=50, reserved=50, allocated=50)
    assert memory.ceiling([reading(used=30, ours=30, **told), blank], (), 0.0) == 70


def test_weights_can_be_told_where_a_pool_hides_them() -> None:
    pool = reading(used=90, ours=90)
    assert guard().ceiling([pool], (), 0.0) == 10
    assert guard(resident=20).ceiling([pool], (), 0.0) == 80


def test_without_news_it_serves_on_the_capacity_alone_and_says_so() -> None:
    memory = guard(stale_after=10)
    memory.ceiling([reading(at=0, used=50)], (), 0.0)
    last = [reading(at=0, used=75, error="Unknown Error")]
    assert memory.ceiling(last, (), 10.0) is not None, "the last value is good for a while"
    assert memory.ceiling(last, (), 12.0) is None
    assert memory.reason == "no memory reading for 12 s (Unknown Error): serving on the capacity alone"
    assert memory.ceiling([reading(at=13, used=75)], (), 13.0) is not None


def test_without_news_it_can_close_instead() -> None:
    memory = guard(stale_after=1, when_stale="close")
    assert memory.ceiling([reading()], (), 5.0) == 0
    assert memory.reason.endswith("closed until there is one")
    assert guard(when_stale="close").ceiling([DeviceReading(taken_at=5.0)], (), 5.0) == 0


def test_a_device_that_tells_no_memory_is_no_reason_to_refuse() -> None:
    memory = guard()
    assert memory.ceiling([DeviceReading(taken_at=5.0)], (), 5.0) is None
    assert "the device does not tell its memory" in memory.reason


def test_one_that_falls_silent_about_what_is_ours_is_unknown_and_not_zero() -> None:
    memory = guard()
    memory.ceiling([reading(used=10, ours=10)], (), 0.0)
    assert memory.ceiling([reading(used=50, ours=None)], (), 0.0) is None
    assert memory.reason


def test_memory_is_asked_back_once_before_requests_have_to_wait() -> None:
    calls: list[int] = []
    memory = guard(reclaim=lambda: calls.append(1), cool_down=30)
    full = [reading(used=100)] * 2
    assert limit_of(memory, [reading()], (), 0.0).action is None
    action = limit_of(memory, full, (), 1.0).action
    assert action is not None
    action()
    assert calls == [1]
    again = limit_of(memory, [reading(at=20.0, used=100)], (), 20.0)
    assert again.action is None, "not again so soon"
    assert limit_of(memory, [reading(at=31.0, used=100)], (), 31.0).action is not None


def test_memory_is_not_asked_back_while_something_can_still_start() -> None:
    memory = guard(reclaim=lambda: None)
    memory.ceiling([reading()], (), 0.0)
    assert limit_of(memory, [reading(used=75)], (), 0.0).action is None


def test_torchs_cache_is_not_emptied_when_it_is_empty() -> None:
    memory = guard(reclaim=empty_cache)
    start = reading(reserved=0, allocated=0)
    memory.ceiling([start], (), 0.0)
    full = reading(used=100, reserved=0, allocated=0)
    assert limit_of(memory, [start, full], (), 0.0).action is None
    cached = reading(used=100, ours=5, reserved=5, allocated=0, held=50)
    assert limit_of(memory, [start, cached], (), 0.0).action is empty_cache


def test_a_reading_without_a_capacity_is_held_against_the_whole_device() -> None:
    memory = guard()
    memory.ceiling([reading(capacity=None)], (), 0.0)
    assert memory.ceiling([reading(capacity=None, used=30)], (), 0.0) == 70


def test_a_copy_shares_settings_and_no_state() -> None:
    class Pool:
        def unload(self) -> None: ...

        def __deepcopy__(self, memo: object) -> Pool:
            raise AssertionError("a pool of models must not be copied")

    first = guard(reclaim=Pool().unload)
    second = copy.deepcopy(first)
    first.ceiling([reading(used=50)], (), 0.0)
    assert second.ceiling([reading()], (), 0.0) is None
    assert second.reason == ""


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"watermark": "x%"}, ValueError, "watermark='x%'"),
        ({"watermark": "100%"}, ValueError, "at least 0 and below 100"),
        ({"watermark": 1.5}, TypeError, "watermark must be bytes"),
        ({"resident": "many"}, ValueError, "resident='many'"),
        ({"reclaim": 3}, TypeError, "reclaim must be a callable"),
        ({"when_stale": "panic"}, ValueError, "when_stale must be"),
        ({"cool_down": -1}, ValueError, "cool_down must be 0 seconds or more"),
        ({"stale_after": float("nan")}, ValueError, "stale_after must be 0 seconds or more"),
    ],
)
def test_wrong_settings_are_refused_by_name(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        MemoryGuard(**options)


def test_sizes_may_be_text() -> None:
    memory = MemoryGuard(watermark="1GiB", resident="2GiB")
    assert memory.name == "memory"
