"""Drivers that contradict themselves: what can't be true is not known, and never a number."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from gpu_admission import Admission, DeviceReading, Estimate, Unavailable
from gpu_admission.devices.mps import allowance
from gpu_admission.devices.nvml_processes import our_bytes
from gpu_admission.devices.plausible import plausible
from gpu_admission.estimators import Constant
from tests.cards import HandClock, look

pytestmark = pytest.mark.anyio
GIB = 2**30


class Told:
    """A device that tells what ``facts`` returns."""

    name = key = "card"

    def __init__(self, clock: HandClock, facts: Callable[[], dict[str, int]]) -> None:
        self.clock = clock
        self.facts = facts

    def read(self) -> DeviceReading:
        return DeviceReading(taken_at=self.clock(), **self.facts())  # type: ignore[arg-type]


def test_n19_a_listed_process_of_ours_with_0_bytes_is_not_told() -> None:
    assert our_bytes([SimpleNamespace(pid=os.getpid(), usedGpuMemory=0)]) is None


async def test_n19_a_lease_is_not_foreign_memory_where_ours_is_told_as_0(
    by_hand: HandClock,
) -> None:
    """80 GiB, 20 of weights; then a lease of 30 is really in use."""
    lent = 0

    def facts() -> dict[str, int]:
        taken = (20 + lent) * GIB
        return {
            "total": 80 * GIB,
            "free": 80 * GIB - taken,
            "used": taken,
            "ours": 0,
            "reserved": taken,
            "allocated": taken,
        }

    admission = Admission(
        devices=[Told(by_hand, facts)], capacity="100%", margin=0, estimator=Constant(GIB), guards=None
    )
    await admission.startup.begin()
    assert admission.snapshot().capacity == 60 * GIB
    lease = await admission.entrance.acquire(Estimate(30 * GIB))
    lent = 30
    look(admission, 3)
    assert admission.snapshot().available == 30 * GIB
    lease.release()


async def test_n20_more_free_than_there_is_gives_no_more_than_the_share_and_says_so_once(
    by_hand: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    facts = {
        "total": 67_076_000_000,
        "free": 128_849_018_880,
        "used": -61_773_018_880,
        "reserved": GIB,
        "allocated": GIB,
    }
    admission = Admission(
        devices=[Told(by_hand, lambda: facts)], capacity="85%", estimator=Constant(GIB), guards=None
    )
    with caplog.at_level(logging.WARNING, logger="gpu_admission"):
        await admission.startup.begin()
        look(admission, 3)
    snapshot = admission.snapshot()
    assert 0 < snapshot.capacity <= 0.85 * 67_076_000_000
    reading = snapshot.devices[0].reading
    assert reading is not None
    assert reading.used is None
    doubts = [record.getMessage() for record in caplog.records if "believed" in record.getMessage()]
    assert len(doubts) == 1
    assert "120.00 GiB free of 62.47 GiB in all" in doubts[0]


def test_n35_more_of_ours_than_the_device_has_is_not_known() -> None:
    scrambled = DeviceReading(total=80 * GIB, used=5 * GIB, ours=2**45)
    assert plausible(scrambled).ours is None
    assert "more than the device has" in (plausible(scrambled).error or "")


def test_a_reading_that_can_be_true_stays_the_same_object() -> None:
    reading = DeviceReading(total=80, free=70, used=10, ours=10, reserved=10, allocated=5)
    assert plausible(reading) is reading
    assert plausible(DeviceReading()) == DeviceReading()


@pytest.mark.parametrize(
    ("limit", "index", "size"),
    [
        ("0=4G", 0, 4 * GIB),
        ("0=1G,1=4710M", 1, 4710 * 2**20),
        ("0=1G", 1, None),
        ("0=1G", None, None),
        ("", 0, None),
        ("0:1G,x", 0, None),
    ],
)
def test_n34_the_limit_of_an_mps_client_is_read_from_its_environment(
    limit: str, index: int | None, size: int | None
) -> None:
    assert allowance(index, {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": limit}) == size


async def test_n34_a_measured_capacity_stays_within_the_limit_of_an_mps_client(by_hand: HandClock) -> None:
    """The driver shows 44 GiB, of which others use 10; this process may use 4.6 and has 1 resident."""
    facts = {
        "total": 44 * GIB,
        "free": 33 * GIB,
        "used": 11 * GIB,
        "ours": GIB,
        "reserved": GIB,
        "allocated": GIB,
        "allowance": 4710 * 2**20,
    }
    admission = Admission(
        devices=[Told(by_hand, lambda: facts)], capacity="100%", margin=0, estimator=Constant(1), guards=None
    )
    await admission.startup.begin()
    assert admission.snapshot().capacity == 4710 * 2**20 - GIB


async def test_n21_capacity_follows_foreign_memory_up_once_it_is_confirmed(by_hand: HandClock) -> None:
    """Started while the last worker was still dying: 22 GiB of its memory come back."""
    foreign = 22

    def facts() -> dict[str, int]:
        own = {"ours": 8 * GIB, "reserved": 8 * GIB, "allocated": 8 * GIB}
        return {"total": 80 * GIB, "free": (72 - foreign) * GIB, "used": (8 + foreign) * GIB, **own}

    admission = Admission(
        devices=[Told(by_hand, facts)], capacity="100%", margin=0, estimator=Constant(GIB), guards=None
    )
    await admission.startup.begin()
    assert admission.snapshot().ceiling == 50 * GIB
    foreign = 0
    look(admission)
    assert admission.snapshot().ceiling == 50 * GIB, "one reading may be noise"
    look(admission)
    assert admission.snapshot().ceiling == admission.snapshot().capacity == 72 * GIB
    foreign = 10
    look(admission)
    assert admission.snapshot().ceiling == 62 * GIB


async def test_a_capacity_that_was_set_by_hand_does_not_grow(by_hand: HandClock) -> None:
    facts = {"total": 80 * GIB, "free": 72 * GIB, "used": 8 * GIB, "ours": 8 * GIB}
    admission = Admission(devices=[Told(by_hand, lambda: facts)], estimator=Constant(GIB))
    await admission.startup.begin()
    admission.resize("10GiB")
    look(admission, 3)
    assert admission.snapshot().capacity == 10 * GIB


async def test_guards_that_need_no_readings_are_on_with_a_capacity_in_bytes(by_hand: HandClock) -> None:
    """Five out-of-memory errors in a row are never silent."""
    admission = Admission(capacity="20GiB", estimator=Constant(GIB))
    for _ in range(3):
        with pytest.raises(MemoryError):
            async with admission.lease(GIB):
                raise MemoryError
    snapshot = admission.snapshot()
    assert snapshot.closed_by == "out-of-memory"
    with pytest.raises(Unavailable, match="guard 'out-of-memory' lets nothing start"):
        async with admission.lease(GIB):
            pass
    by_hand.pass_(30)
    look(admission)
    async with admission.lease(GIB):
        pass
    by_hand.pass_(200)
    look(admission)
    assert admission.snapshot().ceiling == 20 * GIB


async def test_until_something_fails_nothing_is_read_and_no_thread_runs() -> None:
    before = threading.active_count()
    admission = Admission(capacity=100, estimator=1)
    async with admission.lease(1):
        pass
    assert threading.active_count() == before
    with pytest.raises(MemoryError):
        async with admission.lease(1):
            raise MemoryError
    assert admission.snapshot().ceiling == 80
    await admission.aclose()
