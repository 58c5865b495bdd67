"""Events that are worked off in a thread, in whatever process they were noted."""

from __future__ import annotations

import gc
import threading
from collections.abc import Sequence

from gpu_admission.observe.backlog import Backlog
from gpu_admission.types import Event
from tests.observe.events import event


def test_what_was_added_is_worked_off_once_in_order() -> None:
    seen: list[str] = []
    backlog = Backlog(lambda events: seen.extend(event.kind for event in events))
    backlog.add(event("admitted"))
    backlog.add(event("released"))
    backlog.work_off()
    backlog.work_off()
    assert seen == ["admitted", "released"]


def test_once_started_a_thread_works_it_off_and_a_second_start_changes_nothing() -> None:
    ticked, done = threading.Semaphore(0), threading.Event()

    def work(events: Sequence[Event]) -> None:
        ticked.release()
        if events:
            done.set()

    backlog = Backlog(work, every=0.001)
    backlog.start()
    before = threading.active_count()
    backlog.start()
    assert threading.active_count() == before
    assert ticked.acquire(timeout=10)
    backlog.add(event("admitted"))
    assert done.wait(10)


def test_the_thread_ends_with_the_backlog() -> None:
    backlog = Backlog(lambda events: None, every=0.001)
    backlog.start()
    mine = [thread for thread in threading.enumerate() if thread.name == "gpu-admission-metrics"][-1]
    del backlog
    gc.collect()
    mine.join(10)
    assert not mine.is_alive()


def test_after_a_fork_it_starts_again_although_a_lock_was_held() -> None:
    done = threading.Event()
    backlog = Backlog(lambda events: done.set(), every=60)
    backlog.start()
    assert done.wait(10)
    done.clear()
    with backlog._lock:
        backlog._begin_anew()
        backlog.start()
        assert done.wait(10)


def test_hurried_it_is_worked_off_at_once() -> None:
    ticked, done = threading.Event(), threading.Event()

    def work(events: Sequence[Event]) -> None:
        ticked.set()
        if events:
            done.set()

    backlog = Backlog(work, every=3600)
    backlog.start()
    assert ticked.wait(10)
    backlog.add(event("released"))
    backlog.hurry()
    assert done.wait(10)
