"""What an admission tells its observers, and what can be asked of it."""

from __future__ import annotations

import functools
import logging
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from gpu_admission import Admission, Estimate, GPUAdmission, Lane, Rejected
from gpu_admission.types import Event

pytestmark = pytest.mark.anyio


class Notes:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.watched: list[Admission] = []

    def watch(self, admission: Admission) -> None:
        self.watched.append(admission)

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]


def noted(**settings: Any) -> tuple[Admission, Notes]:
    notes = Notes()
    options: dict[str, Any] = {"capacity": 100, "estimator": 10, "observers": [notes]}
    return Admission(**(options | settings)), notes


async def test_an_observer_is_given_its_admission_and_the_life_of_each_lease() -> None:
    admission, notes = noted()
    async with admission.lease(60) as lease:
        lease.resize(40)
        lease.record_peak(30)
    assert notes.watched == [admission]
    assert notes.kinds == ["started", "admitted", "resized", "released"]
    assert [event.bytes for event in notes.events] == [100, 60, 40, 40]
    assert {event.lease for event in notes.events[1:]} == {lease.number}
    assert notes.events[-1].peak == 30


async def test_a_resize_that_does_not_fit_changes_and_tells_nothing() -> None:
    admission, notes = noted()
    async with admission.lease(60) as lease:
        with pytest.raises(Rejected):
            lease.resize(101)
    assert "resized" not in notes.kinds


async def test_an_observer_may_come_later() -> None:
    admission, first = noted()
    second = Notes()
    async with admission.lease(10):
        admission.observe(second)
    assert second.kinds == ["released"]
    assert first.kinds == ["started", "admitted", "released"]


async def test_an_observer_that_fails_is_logged_and_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def broken(event: Event) -> None:
        raise RuntimeError("broken")

    notes = Notes()
    admission = Admission(capacity=100, estimator=10, observers=[broken, notes])
    async with admission.lease(10):
        pass
    assert notes.kinds == ["started", "admitted", "released"]
    assert "observer" in caplog.text


async def test_the_start_is_told_once_with_the_configuration(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "gpu_admission"):
        admission, notes = noted(mode="shadow")
        for _ in range(2):
            (await admission.entrance.acquire(Estimate(5))).release()
        admission.startup.start()
    assert notes.kinds.count("started") == 1
    assert caplog.text.count("gpu_admission 'default' starts: capacity=100 B") == 1


def test_a_server_that_starts_says_so_before_the_first_request() -> None:
    admission, notes = noted()
    app = Starlette()
    app.add_middleware(GPUAdmission, admission=admission)
    with TestClient(app):
        assert notes.kinds == ["started"]


def test_in_mode_off_nothing_is_told() -> None:
    _, notes = noted(mode="off")
    assert notes.events == []


async def test_the_queue_is_by_priority_of_the_lane_then_by_arrival() -> None:
    lanes = [Lane("batch"), Lane("interactive", priority=5)]
    admission, _ = noted(lanes=lanes)
    await admission.entrance.acquire(Estimate(100))
    async with anyio.create_task_group() as tasks:
        for lane, size in ((0, 10), (1, 20), (0, 30), (1, 40)):
            tasks.start_soon(functools.partial(admission.entrance.acquire, Estimate(size), lane=lane))
            await anyio.wait_all_tasks_blocked()
        assert (admission.in_use, admission.waiting) == (100, 4)
        queue = admission.queue()
        assert [(row.lane, row.bytes) for row in queue] == [
            ("interactive", 20),
            ("interactive", 40),
            ("batch", 10),
            ("batch", 30),
        ]
        assert [row.bytes for row in admission.queue(most=1)] == [20]
        tasks.cancel_scope.cancel()
    assert admission.queue() == ()


class Late(Notes):
    """An observer that works off events later."""

    def __init__(self) -> None:
        super().__init__()
        self.flushed: list[list[str]] = []

    def flush(self) -> None:
        self.flushed.append(self.kinds)


def test_at_the_servers_shutdown_an_observer_is_told_to_work_off_what_it_knows() -> None:
    late = Late()
    app = GPUAdmission(Starlette(), capacity=100, estimator=10, observers=[late])
    with TestClient(app):
        assert not late.flushed
    assert late.flushed == [["started"]]


async def test_closed_an_admission_has_observers_work_off_what_they_know_and_failures_stop_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Full(Late):
        def flush(self) -> None:
            raise OSError("disk full")

    late = Late()
    admission = Admission(capacity=100, estimator=10, observers=[Full(), late])
    async with admission, admission.lease(10):
        pass
    assert late.flushed == [["started", "admitted", "released"]]
    assert "what it had noted may be lost" in caplog.text
