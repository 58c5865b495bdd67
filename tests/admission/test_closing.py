"""What a closed admission leaves behind: nothing."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest

from gpu_admission import Admission, Estimate, Unavailable
from gpu_admission.admission.twins import twins
from gpu_admission.shared.memory import MemoryHub, MemoryLog
from gpu_admission.shared.protocol import Listener
from gpu_admission.testing import FakeDevice
from tests.admission.places import Places
from tests.waiting import until, until_async

_POOLS = ("AnyIO worker", "Trio thread")
"""Threads that the event loop keeps for whoever needs one next."""


def running() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if not thread.name.startswith(_POOLS)}


def opened() -> set[tuple[str, str]]:
    """The open descriptors of this process, and what each of them is."""
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        if path.exists() or path.is_symlink():
            found.add((path.name, os.readlink(path)))
    return found


class Before:
    """What ran and was open when this was made."""

    def __init__(self) -> None:
        self._threads, self._opened = running(), opened()

    def is_all(self) -> bool:
        """Whether there is nothing else now."""
        return running() <= self._threads and opened() <= self._opened

    @property
    def has_more_threads(self) -> bool:
        return not running() <= self._threads


def worker(**settings: Any) -> Admission:
    usual: dict[str, Any] = {"capacity": 100, "estimator": 1, "devices": [FakeDevice(200)], "lease_ttl": 1.0}
    return Admission(**(usual | settings))


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["enforce", "shadow"])
async def test_closed_an_admission_leaves_no_thread_and_no_open_file(places: Places, mode: str) -> None:
    before = Before()
    async with worker(shared=places.new(), mode=mode) as admission:
        async with admission.lease(60) as lease:
            assert lease.bytes == 60
        assert before.has_more_threads
    await until_async(before.is_all)


@pytest.mark.anyio
async def test_closed_with_a_lease_that_runs_it_leaves_nothing_once_that_has_ended(places: Places) -> None:
    before = Before()
    admission = worker(shared=places.new())
    async with admission.lease(60):
        await admission.aclose()
        assert admission.in_use == 60
        assert before.has_more_threads
    await until_async(before.is_all)


@pytest.mark.parametrize("kind", ["alone", "folder"])
def test_closed_a_program_without_a_loop_is_left_without_one(kind: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"shared": str(tmp_path / "gpu0")} if kind == "folder" else {}
    before = Before()
    admission = worker(**settings)
    with admission.lease(60):
        assert before.has_more_threads
    anyio.run(admission.aclose)
    twins().drop()  # its claims on devices are the process's, until that ends
    until(before.is_all)


class SlowToJoin(MemoryLog):
    """One whose ``start`` lasts until ``goes_on`` is set."""

    def __init__(self) -> None:
        super().__init__(MemoryHub())
        self.begun, self.goes_on = threading.Event(), threading.Event()

    def start(self, process: str, listener: Listener) -> None:
        self.begun.set()
        self.goes_on.wait(20)
        super().start(process, listener)


@pytest.mark.anyio
async def test_closed_while_it_joins_a_shared_budget_it_leaves_that_again() -> None:
    before, log = Before(), SlowToJoin()
    admission = worker(shared=log)
    async with anyio.create_task_group() as group:
        group.start_soon(admission.startup.begin)
        await until_async(log.begun.is_set)
        group.start_soon(admission.aclose)
        await until_async(lambda: admission.locked.is_closed)
        log.goes_on.set()
    assert not log.hub.logs
    await until_async(before.is_all)


@pytest.mark.anyio
async def test_closed_before_it_has_joined_it_never_does() -> None:
    before, log = Before(), MemoryLog(MemoryHub())
    admission = worker(shared=log)
    await admission.aclose()
    with pytest.raises(Unavailable):
        await admission.entrance.acquire(Estimate(60))
    await admission.startup.begin()
    await until_async(before.is_all)
    assert not log.hub.logs


@pytest.mark.anyio
async def test_closed_an_admission_that_only_watches_has_summed_up_what_it_saw(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "gpu_admission")
    before = Before()
    async with worker(mode="shadow") as admission:
        leases = [await admission.entrance.acquire(Estimate(60)) for _ in range(2)]
        for lease in leases:
            lease.release()
    assert "would have refused 0 of 2, delayed 1" in caplog.text
    await until_async(before.is_all)
