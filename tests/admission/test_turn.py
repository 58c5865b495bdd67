"""Ends that come from a garbage collection: in any thread, whatever lock that thread holds just then."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from gpu_admission import Admission, Estimate, Lease
from gpu_admission.budget.ticket import GRANTED, Ticket
from gpu_admission.devices import Readings
from gpu_admission.estimators.polled import Polled
from gpu_admission.shared.logfile import LogFile
from tests.cases.harness import until

pytestmark = pytest.mark.anyio


class InOtherThread:
    """Another thread that holds a lock, of logging or a library, in which the collector calls ``ends``."""

    def __init__(self, ends: Callable[[], object]) -> None:
        self.lock = threading.Lock()
        self._ends = ends
        self._holds, self._goes_on = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with self.lock:
            self._holds.set()
            self._goes_on.wait(10)
            self._ends()

    def start(self) -> None:
        if not self._holds.is_set():
            self._thread.start()
            self._holds.wait(10)

    def is_passed_by(self, admission: Admission) -> bool:
        """Whether a thread that has the turn gets the lock, while the other ends what it ends."""
        self.start()
        with admission.locked:
            self._goes_on.set()
            passed = self.lock.acquire(timeout=10)
        self._thread.join(10)
        return passed and not self._thread.is_alive()


async def _lease(admission: Admission, size: int = 60) -> Lease:
    return await admission.entrance.acquire(Estimate(size))


async def _release(admission: Admission) -> Callable[[], object]:
    return (await _lease(admission)).release


async def _close_handle(admission: Admission) -> Callable[[], object]:
    lease = await _lease(admission)
    handle = lease.keep()
    lease.release()
    return handle.close


async def _leave_block(admission: Admission) -> Callable[[], object]:
    lease = await _lease(admission)
    share = lease.issuer.open_share(lease, 80, None)
    await lease.issuer.fund(lease, share)
    lease.release()
    return lambda: lease.issuer.close_share(lease, share)


@pytest.mark.parametrize("ending", [_release, _close_handle, _leave_block])
@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
async def test_what_ends_in_a_thread_that_holds_a_lock_does_not_wait_for_a_turn_that_waits_for_the_lock(
    ending: Any, shared: bool, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"shared": tmp_path / "gpu0"} if shared else {}
    admission = Admission(capacity=100, estimator=1, **settings)
    other = InOtherThread(await ending(admission))
    assert other.is_passed_by(admission)
    await until(lambda: admission.in_use == 0)
    await admission.aclose()


async def test_thousands_that_one_collection_ends_there_wait_once_together() -> None:
    admission = Admission(capacity=2**40, estimator=1)
    leases = [await _lease(admission) for _ in range(3000)]

    def collect() -> None:
        for lease in leases:
            lease.release()

    other = InOtherThread(collect)
    assert other.is_passed_by(admission)  # one by one it would take minutes
    await until(lambda: admission.in_use == 0)


async def test_where_no_thread_can_be_had_they_end_with_the_turn_that_they_met(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start_new_thread(*arguments: object) -> int:
        raise RuntimeError("can't start new thread")

    admission = Admission(capacity=100, estimator=1)
    other = InOtherThread(await _release(admission))
    monkeypatch.setattr("gpu_admission.runtime.turn._thread.start_new_thread", start_new_thread)
    other.start()
    assert other.is_passed_by(admission)
    assert admission.in_use == 0


async def test_a_lease_that_ends_in_the_thread_of_a_meter_does_not_hold_up_whoever_reads_the_meter() -> None:
    admission = Admission(capacity=100, estimator=1)
    lease, looks, ends = await _lease(admission), threading.Event(), threading.Event()
    here = threading.current_thread()

    def read() -> int:
        if threading.current_thread() is not here:
            looks.set()
            ends.wait(10)
            lease.release()
        return 5

    meter = Polled(read)
    meter.start()
    assert looks.wait(10)
    reads = threading.Timer(0, ends.set)
    with admission.locked:
        reads.start()
        assert meter.peak() == 5
    await until(lambda: admission.in_use == 0)


async def test_a_snapshot_in_the_middle_of_reading_a_shared_log_spoils_nothing(tmp_path: Path) -> None:
    """An observer may take one when the collector ends a lease, and a signal handler at any time."""
    admission = Admission(capacity=100, estimator=1, shared=tmp_path / "gpu0", timeout=0)
    (await _lease(admission, 1)).release()

    def ask() -> None:
        admission.locked.ask(tickets[-1])

    tickets, steps = [Ticket(60)], 0
    while Interrupted.at(steps, LogFile.read, admission.snapshot, ask):
        assert tickets[-1].state is GRANTED
        admission.locked.release(tickets[-1])
        assert admission.in_use == 0
        tickets.append(Ticket(60))
        steps += 1
    assert steps > 5
    admission.locked.release(tickets[-1])
    await admission.aclose()


class Interrupted:
    """Calls something in the middle of a function, as a collection or a signal does."""

    def __init__(self, step: int, function: Callable[..., Any], interrupt: Callable[[], object]) -> None:
        self._left, self._code, self._interrupt = step, function.__code__, interrupt
        self.has_happened = False

    @classmethod
    def at(
        cls, step: int, function: Any, interrupt: Callable[[], object], work: Callable[[], object]
    ) -> bool:
        """Do ``work``, interrupted after so many lines of ``function``; whether it had as many."""
        interrupted = cls(step, function, interrupt)
        before = sys.gettrace()
        sys.settrace(interrupted._called)
        try:
            work()
        finally:
            sys.settrace(before)
        return interrupted.has_happened

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._line if frame.f_code is self._code else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line" and not self.has_happened:
            if self._left == 0:
                self.has_happened = True
                self._interrupt()
            self._left -= 1
        return self._line


async def test_a_lease_that_runs_out_of_memory_while_readings_start_does_not_wait_for_that() -> None:
    steps = 0
    while await _runs_out(steps):
        steps += 1
    assert steps > 3


async def _runs_out(step: int) -> bool:
    admission = Admission(capacity=100, estimator=1)
    readings, lease = admission.monitor.readings, await _lease(admission)
    assert readings is not None
    lease.report_oom()
    has_happened = Interrupted.at(step, Readings.start, lease.release, readings.start)
    readings.stop()
    lease.release()
    assert admission.in_use == 0
    return has_happened
