"""Programs that join a shared budget and say little or nothing of it themselves."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import pytest

from gpu_admission import Admission, Lane, TooLarge
from gpu_admission.testing import FakeDevice
from gpu_admission.types import Estimate
from tests.admission.places import Places

pytestmark = pytest.mark.anyio


def worker(places: Places, **settings: Any) -> Admission:
    return Admission(
        **({"capacity": 100, "estimator": 1, "shared": places.new(), "lease_ttl": 2.0} | settings)
    )


def joiner(places: Places, **settings: Any) -> Admission:
    return Admission(shared=places.new(), **settings)


async def seen_by(admission: Admission, capacity: int) -> bool:
    """Whether it sees that ``capacity`` once it has read what others have said."""
    with anyio.move_on_after(5):
        while admission.snapshot().capacity != capacity:
            admission.locked.catch_up()
            await anyio.sleep(0.01)
    return admission.snapshot().capacity == capacity


async def read_all(admission: Admission) -> None:
    """What others have said up to now is read by then."""
    (await admission.entrance.acquire(Estimate(0))).release()


async def test_one_that_joins_without_settings_takes_the_budget_as_it_is_and_leaves_it_so(
    places: Places, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gpu_admission")
    async with worker(places, max_waiting=7, max_running=3) as first, worker(places, max_waiting=7):
        async with joiner(places) as guest, guest.lease(60):
            assert guest.snapshot().capacity == 100
            assert guest.monitor.devices == ()
            await read_all(first)
            assert (first.snapshot().capacity, first.snapshot().in_use) == (100, 60)
            assert first.locked.ledger.lanes[0].max_waiting == 7
            assert first.locked.ledger.max_running == 3
            with pytest.raises(TooLarge):
                await guest.entrance.acquire(Estimate(101))
        await read_all(first)
        assert first.snapshot().capacity == 100
    assert "different settings" not in caplog.text
    assert "not set in this process" in caplog.text
    assert "capacity=100 B" in caplog.text


async def test_the_first_of_a_budget_measures_and_one_that_gives_bytes_overrules_it(places: Places) -> None:
    async with joiner(places, devices=[FakeDevice(80)], margin=0, lease_ttl=2.0) as first:
        assert await seen_by(first, 80)
        async with worker(places, capacity=50) as second:
            assert await seen_by(second, 50)
            assert await seen_by(first, 50)
            first.monitor.review(0)  # another reading does not raise it again
            (await first.entrance.acquire(Estimate(1))).release()
            assert first.snapshot().capacity == 50
        async with joiner(places, devices=[FakeDevice(90)], margin=0) as third:
            (await third.entrance.acquire(Estimate(1))).release()
            assert third.snapshot().capacity == 50


async def test_a_device_that_is_measured_does_not_overrule_bytes_that_were_given(places: Places) -> None:
    async with worker(places) as first, joiner(places, capacity="50%", devices=[FakeDevice(400)]) as second:
        (await second.entrance.acquire(Estimate(100))).release()
        (await first.entrance.acquire(Estimate(100))).release()
        assert second.snapshot().capacity == first.snapshot().capacity == 100


async def test_a_guest_whose_budget_has_gone_goes_on_with_what_it_knew(places: Places) -> None:
    guest = joiner(places)
    async with worker(places):
        await guest.startup.begin()
        await guest.locked.rest()
    async with guest.lease(100):
        assert guest.snapshot().capacity == 100
    await guest.aclose()


async def test_what_one_was_given_counts_and_what_it_was_not_stays(
    places: Places, caplog: pytest.LogCaptureFixture
) -> None:
    lanes = (Lane("urgent"), Lane("usual"))
    first = worker(places, lanes=lanes, lane=lambda scope: "usual", max_waiting=7)
    async with first, worker(places, capacity=200, max_waiting=9) as second:
        assert await seen_by(second, 200)
        assert second.locked.lane_names == ("urgent", "usual")
        assert second.locked.ledger.lanes[0].max_waiting == 9
        assert await seen_by(first, 200)
    assert "capacity=100 B here, 200 B in force; max_waiting=7 here, 9 in force" in caplog.text
