from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable

import pytest

from gpu_admission.devices import FixedDevice, Readings
from gpu_admission.types import DeviceReading


class Scripted(FixedDevice):
    """Answers one reading after the other, and the last one for ever."""

    def __init__(self, *readings: DeviceReading | Exception) -> None:
        super().__init__(1)
        self._script = list(readings)

    def read(self) -> DeviceReading:
        answer = self._script.pop(0) if len(self._script) > 1 else self._script[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class Stuck(FixedDevice):
    """A driver that does not come back until it is let go."""

    def __init__(self) -> None:
        super().__init__(100)
        self.go = threading.Event()
        self.calls = 0

    def read(self) -> DeviceReading:
        self.calls += 1
        self.go.wait(30)
        return super().read()


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_each_step_reads_each_device_once_and_tells_it() -> None:
    told: list[int] = []
    readings = Readings([FixedDevice(10), FixedDevice(20)], told.append)
    assert readings.latest(0) == ()
    readings.step()
    readings.step()
    assert [reading.total for reading in readings.latest(1)] == [20, 20]
    assert told == [0, 1, 0, 1]


def test_only_the_last_readings_are_kept() -> None:
    readings = Readings([FixedDevice(10)], keep=3)
    for _ in range(5):
        readings.step()
    assert len(readings.latest(0)) == 3


def test_a_reading_carries_the_capacity_and_the_most_that_was_held_around_it() -> None:
    leases = iter([(None, 70), (90, 40)])
    readings = Readings([FixedDevice(100)], leases=lambda index: next(leases))
    readings.step()
    (reading,) = readings.latest(0)
    assert (reading.capacity, reading.held) == (90, 70)


def test_a_failed_look_leaves_the_last_good_one_growing_old() -> None:
    good = DeviceReading(total=10, used=1, taken_at=5.0)
    bad = DeviceReading(error="Unknown Error", faults=("GPU is lost",), taken_at=6.0)
    readings = Readings([Scripted(good, bad)])
    for _ in range(4):
        readings.step()
    (reading,) = readings.latest(0)
    assert (reading.used, reading.taken_at, reading.error) == (1, 5.0, "Unknown Error")
    assert reading.faults == ("GPU is lost",)


def test_a_fault_that_was_told_once_stays_while_the_driver_is_silent() -> None:
    lost = DeviceReading(total=10, taken_at=5.0, faults=("Xid 79",))
    readings = Readings([Scripted(lost, DeviceReading(error="x"))])
    readings.step()
    readings.step()
    assert readings.latest(0)[-1].faults == ("Xid 79",)


def test_a_device_that_breaks_its_promise_and_raises_is_a_failed_look() -> None:
    clock = Clock()
    readings = Readings([Scripted(OSError("gone"))], clock=clock)
    readings.step()
    (reading,) = readings.latest(0)
    assert (reading.error, reading.taken_at) == ("OSError: gone", 100.0)


def test_a_driver_that_blocks_costs_its_own_device_a_look_and_nobody_else_anything() -> None:
    stuck, clock = Stuck(), Clock()
    readings = Readings([stuck, FixedDevice(7)], limit=0.0, clock=clock)
    readings.step()
    clock.now = 112.0
    readings.step()
    assert stuck.calls == 1, "no second thread waits for it"
    assert readings.latest(0)[-1].error == "no answer for 12 s"
    stuck.go.set()
    patient = Readings([stuck])
    patient.step()
    assert patient.latest(0)[-1].total == 100


def test_a_blocked_look_is_followed_by_a_new_one_when_it_has_ended() -> None:
    stuck = Stuck()
    readings = Readings([stuck], limit=0.0)
    readings.step()
    stuck.go.set()
    readings._looks[0].wait(10)
    readings._limit = 10.0
    readings.step()
    assert stuck.calls == 2
    assert readings.latest(0)[-1].total == 100


def test_a_listener_that_fails_does_not_stop_the_readings(caplog: pytest.LogCaptureFixture) -> None:
    def fail(index: int) -> None:
        raise KeyError(index)

    readings = Readings([FixedDevice(1), FixedDevice(2)], fail)
    readings.step()
    assert len(readings.latest(1)) == 1
    assert "a reading of fixed could not be used" in caplog.text


def ticking(every: float = 0.001) -> tuple[Readings, threading.Semaphore]:
    ticks = threading.Semaphore(0)

    def tell(index: int) -> None:
        ticks.release()

    return Readings([FixedDevice(1)], tell, every=every), ticks


STRAYS: set[threading.Thread] = set()


@pytest.fixture(autouse=True)
def strays() -> None:
    """Threads that other tests have left are none of these tests'."""
    STRAYS.clear()
    STRAYS.update(threading.enumerate())


def threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "gpu-admission-readings" and t not in STRAYS]


def test_once_started_it_reads_again_and_again_until_stopped() -> None:
    readings, ticks = ticking()
    readings.start()
    readings.start()
    assert len(threads()) == 1
    assert all(ticks.acquire(timeout=10) for _ in range(3))
    (thread,) = threads()
    readings.stop()
    readings.stop()
    thread.join(10)
    assert not thread.is_alive()
    readings.start()
    assert ticks.acquire(timeout=10)
    (thread,) = threads()
    readings.stop()
    thread.join(10)


def test_readings_that_nobody_holds_any_more_end_by_themselves() -> None:
    readings, ticks = ticking()
    readings.start()
    assert ticks.acquire(timeout=10)
    (thread,) = threads()
    gone = weakref.ref(readings)
    del readings
    thread.join(10)
    gc.collect()
    assert not thread.is_alive()
    assert gone() is None


@pytest.mark.parametrize("act", [Readings.start, Readings.step])
def test_another_process_starts_its_own_thread_and_locks(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[Readings], None]
) -> None:
    readings, ticks = ticking(every=60.0)
    readings.start()
    assert ticks.acquire(timeout=10)
    parent = readings._stop
    readings._stepping.acquire()  # as a fork may find it
    monkeypatch.setattr(os, "getpid", lambda: -1)
    act(readings)
    assert ticks.acquire(timeout=10)
    assert readings._stop is not parent
    assert parent is not None
    parent.set()
    readings.stop()
    for thread in threads():
        thread.join(10)


def test_wrong_intervals_are_refused() -> None:
    with pytest.raises(ValueError, match="every must be above 0 seconds"):
        Readings([], every=0)
    with pytest.raises(ValueError, match="limit must be 0 seconds or more"):
        Readings([], limit=-1)


def test_where_no_thread_can_be_started_nothing_is_known_and_the_next_look_is_a_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    readings = Readings([FixedDevice(10)], lambda index: None)
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", no_thread)
        readings.step()
    assert readings.latest(0)[-1].error == "RuntimeError: can't start new thread"
    readings.step()
    assert (readings.latest(0)[-1].total, readings.latest(0)[-1].error) == (10, None)


def no_thread(self: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
