"""What is measured, what guards say, and how both come into force."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from gpu_admission import Admission, QueueTimeout, Unavailable
from gpu_admission.devices import FixedDevice, NvmlDevice, Readings
from gpu_admission.devices import discover as found_devices
from gpu_admission.devices.discover import Discovery
from gpu_admission.guards import FaultGuard, MemoryGuard, OutOfMemoryGuard, ThermalGuard
from gpu_admission.runtime.fork import renew_all
from gpu_admission.types import DeviceReading, Estimate, Outcome
from tests.cards import Card, HandClock, Opinion, look
from tests.cases.harness import scenario, until

pytestmark = pytest.mark.anyio


def watched(**settings: Any) -> Admission:
    return Admission(**{"estimator": 1, **settings})


async def hold(admission: Admission, size: int) -> Any:
    """A lease that no context knows."""
    return await admission.entrance.acquire(Estimate(size), timeout=0)


def end(kind: Any = "ok") -> Outcome:
    return Outcome(kind, 1, "Boom")


STRAYS: set[threading.Thread] = set()


@pytest.fixture(autouse=True)
def strays() -> None:
    """Threads that other tests have left are none of these tests'."""
    STRAYS.clear()
    STRAYS.update(threading.enumerate())


def ticking() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "gpu-admission-readings" and t not in STRAYS]


# measuring


async def test_a_capacity_is_measured_once_and_every_term_is_logged(
    by_hand: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    card = Card(by_hand, 1000, foreign=100, resident=200)
    admission = watched(devices=[card], reserve=20)
    assert admission.snapshot().capacity == 0
    with caplog.at_level(logging.INFO, "gpu_admission"):
        for _ in range(3):
            await admission.startup.begin()
    assert admission.snapshot().capacity == int((1000 - 20 - 100 - 200) * 0.9)
    assert caplog.text.count("total") == len(card.reads) == 1
    assert (
        "card: capacity 612 B = (1000 B total - 20 B reserve - 100 B foreign - 200 B resident) "
        "less a margin of 10%" in caplog.text
    )


@pytest.mark.parametrize(
    ("settings", "capacity"),
    [
        ({"capacity": "85%"}, 765),
        ({"capacity": "50%", "margin": 0}, 500),
        ({"margin": 0.2}, 800),
        ({"margin": 0, "overcommit": 1.5}, 1500),
    ],
)
async def test_shares_margin_and_overcommit_make_the_capacity(
    by_hand: HandClock, settings: dict[str, Any], capacity: int
) -> None:
    admission = watched(devices=[Card(by_hand, 1000)], **settings)
    await admission.startup.begin()
    assert admission.snapshot().capacity == capacity


async def test_overcommit_and_margin_hold_for_a_capacity_in_bytes_too(by_hand: HandClock) -> None:
    assert watched(capacity=1000, overcommit=1.5, margin=0.1).snapshot().capacity == 1350


async def test_overcommit_is_guarded_by_the_watermark(by_hand: HandClock) -> None:
    card = Card(by_hand, 1000, cache=0)
    admission = watched(devices=[card], overcommit=2.0, margin=0)
    await admission.startup.begin()
    one = await hold(admission, 900)
    card.filled = 400
    look(admission, 2)
    other = await hold(admission, 900)
    card.filled = 990
    look(admission)
    with pytest.raises(QueueTimeout, match="not free within"):
        await hold(admission, 100)
    assert "below the watermark" in admission.snapshot().devices[0].reason
    one.release()
    other.release()


async def test_a_device_that_does_not_tell_is_closed_and_asked_at_every_reading(
    by_hand: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    card = Card(by_hand, None)
    admission = watched(devices=[card])
    for _ in range(3):
        with pytest.raises(Unavailable, match="capacity can't be measured on card: the driver is gone") as no:
            await hold(admission, 1)
        assert no.value.reason == "gpu_unavailable"
        assert 1 <= (no.value.retry_after or 0) <= 10
    (device,) = admission.snapshot().devices
    assert (device.capacity, device.closed_by, device.restart_only) == (0, "capacity", False)
    look(admission)
    assert [record.levelname for record in caplog.records].count("ERROR") == 1
    card.total = 100
    look(admission)
    assert admission.snapshot().capacity == 90
    (await hold(admission, 90)).release()


async def test_of_two_devices_the_one_that_tells_serves_until_the_other_does(by_hand: HandClock) -> None:
    good, bad = Card(by_hand, 100, name="good"), Card(by_hand, None, name="bad")
    admission = watched(devices=[bad, good], margin=0)
    lease = await hold(admission, 60)
    assert (lease.device, lease.device_index) == ("good", 1)
    snapshot = admission.snapshot()
    assert [device.capacity for device in snapshot.devices] == [0, 100]
    assert snapshot.devices[0].reason.startswith("capacity can't be measured on bad")
    assert snapshot.closed_by is None
    bad.total = 100
    look(admission)
    assert (await hold(admission, 100)).device == "bad"


def test_a_device_named_twice_is_refused(by_hand: HandClock) -> None:
    with pytest.raises(ValueError, match=r"devices: cuda:0 is there twice"):
        watched(devices=[NvmlDevice(0), NvmlDevice("cuda:0")])


async def test_two_names_of_one_device_are_found_out_when_it_is_read(by_hand: HandClock) -> None:
    one, other = Card(by_hand, name="cuda:0"), Card(by_hand, name="GPU-1")
    admission = watched(devices=[one, other], margin=0)
    one.key = other.key = "GPU-1234"
    await admission.startup.begin()
    assert admission.snapshot().capacity == 100
    assert admission.snapshot().devices[1].reason == "GPU-1 and cuda:0 are the same device: name it once"


async def test_without_devices_the_first_that_is_found_is_metered(
    by_hand: HandClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cards = (Card(by_hand, 100, name="first"), Card(by_hand, 100, name="second"))
    monkeypatch.setattr("gpu_admission.devices.discover", lambda: Discovery(cards, "CUDA shows two"))
    admission = watched()
    assert admission.snapshot().devices[0].name == "device"
    with caplog.at_level(logging.INFO, "gpu_admission"):
        await admission.startup.begin()
    assert [device.name for device in admission.snapshot().devices] == ["first"]
    assert "less a margin of 10% [CUDA shows two]" in caplog.text
    assert admission.snapshot().capacity == 90


async def test_what_this_machine_has_is_found(by_hand: HandClock) -> None:
    admission = watched()
    await admission.startup.begin()
    (device,) = admission.snapshot().devices
    assert device.name == found_devices().devices[0].name
    assert device.capacity > 0


async def test_a_capacity_that_was_set_by_hand_is_not_measured(by_hand: HandClock) -> None:
    admission = watched(devices=[Card(by_hand, 1000)])
    admission.resize(70)
    await admission.startup.begin()
    assert admission.snapshot().capacity == 70
    (await hold(admission, 70)).release()
    nameless = watched()
    nameless.resize(70)
    (await hold(nameless, 70)).release()


async def test_in_shadow_nobody_waits_for_a_measurement_nor_is_refused_by_one(by_hand: HandClock) -> None:
    go = threading.Event()

    class Slow(Card):
        def read(self) -> DeviceReading:
            go.wait(30)
            return super().read()

    admission = watched(devices=[Slow(by_hand, 100)], mode="shadow")
    leases = [await hold(admission, 60), await hold(admission, 60)]
    assert not admission.monitor.is_measured
    go.set()
    thread = admission.monitor._aside
    assert thread is not None
    thread.join(30)
    assert admission.snapshot().capacity == 90
    for lease in leases:
        lease.release()
    silent = watched(devices=[Card(by_hand, None)], mode="shadow")
    (await hold(silent, 10)).release()


async def test_in_shadow_cold_requests_pass_and_are_judged_once_it_is_measured(by_hand: HandClock) -> None:
    may_read = threading.Event()

    class Slow(Card):
        def read(self) -> DeviceReading:
            may_read.wait(30)
            return super().read()

    async with scenario(capacity=None, devices=[Slow(by_hand)], mode="shadow") as scene:
        cold = await scene.run(cost=500)
        may_read.set()
        thread = scene.admission.monitor._aside
        assert thread is not None
        thread.join(30)
        warm = await scene.run(cost=500)
    assert (cold.status, warm.status) == (200, 200)
    assert [event.reason for event in scene.events if event.kind == "shadow"][:2] == ["", "too_large"]


async def in_shadow(admission: Admission) -> None:
    (await hold(admission, 1)).release()
    thread = admission.monitor._aside
    assert thread is not None
    thread.join(30)


async def enforced(admission: Admission) -> None:
    admission.entrance.check_open()
    (await hold(admission, 1)).release()


async def started(admission: Admission) -> None:
    await admission.startup.begin()


@pytest.mark.parametrize(
    ("mode", "work"), [("enforce", enforced), ("enforce", started), ("shadow", in_shadow)]
)
async def test_in_a_forked_process_all_that_lives_is_made_anew(
    by_hand: HandClock, mode: Any, work: Any
) -> None:
    """As seen from inside; whole processes are in ``test_fork``."""
    card = Card(by_hand, 100)
    admission = watched(devices=[card], mode=mode, margin=0)
    await work(admission)
    lease = await hold(admission, 60)
    before = admission.monitor, admission.locked, admission.buffer
    renew_all()
    card.foreign = 70
    await work(admission)
    assert (admission.snapshot().capacity, admission.in_use) == (30, 0)
    assert not set(map(id, before)) & {id(admission.monitor), id(admission.locked), id(admission.buffer)}
    lease.release()
    assert admission.in_use == 0


async def test_switched_off_nothing_is_read(by_hand: HandClock) -> None:
    card = Card(by_hand)
    for settings in ({"capacity": 100}, {}):
        admission = watched(devices=[card], mode="off", **settings)
        await admission.startup.begin()
    assert admission.monitor.readings is not None
    assert admission.monitor.readings._stop is None
    lease = await hold(admission, 1000)
    lease.report_oom()
    lease.release()
    assert card.reads == []


async def test_strict_raises_what_could_not_be_served(by_hand: HandClock) -> None:
    with pytest.raises(ValueError, match=r"can't be measured on card: the driver is gone.*\(strict=True\)"):
        await watched(devices=[Card(by_hand, None)], strict=True).startup.begin()
    with pytest.raises(ValueError, match=r"even the smallest request needs 95 B.*\(strict=True\)"):
        await watched(devices=[Card(by_hand, 100)], estimator=95, strict=True).startup.begin()
    await watched(devices=[Card(by_hand, 100)], estimator=90, strict=True).startup.begin()
    await watched(devices=[Card(by_hand, None)], strict=True, mode="off").startup.begin()


async def test_a_block_measures_and_watches_until_it_is_left() -> None:
    async with watched(devices=[FixedDevice(100)], guards=[Opinion(40)]) as admission:
        assert admission.snapshot().capacity == 90  # a margin of a tenth
        (thread,) = ticking()
    thread.join(5)
    assert not thread.is_alive()
    with pytest.raises(Unavailable):
        await hold(admission, 1)


async def test_a_block_that_can_not_be_entered_leaves_nothing_running() -> None:
    before = set(ticking())
    with pytest.raises(ValueError, match="even the smallest request"):
        async with watched(devices=[FixedDevice(100)], guards=[Opinion(40)], estimator=95, strict=True):
            raise AssertionError("not reached")
    for thread in set(ticking()) - before:
        thread.join(5)
        assert not thread.is_alive()


async def test_measuring_is_off_the_event_loop(by_hand: HandClock) -> None:
    card = Card(by_hand)
    await watched(devices=[card]).startup.begin()
    assert card.reads == ["gpu-admission-card"]


# what guards say


async def test_the_lowest_ceiling_wins_and_its_guard_is_named(by_hand: HandClock) -> None:
    high, low = Opinion(80, name="high"), Opinion(40, name="low")
    admission = watched(capacity=100, devices=[Card(by_hand)], guards=[high, low])
    look(admission)
    (device,) = admission.snapshot().devices
    assert (device.ceiling, device.closed_by, device.reason) == (40, "low", "because")
    assert (admission.snapshot().ceiling, admission.snapshot().available) == (40, 40)
    low.limit = None
    look(admission)
    assert admission.snapshot().devices[0].closed_by == "high"
    high.limit = None
    look(admission)
    (device,) = admission.snapshot().devices
    assert (device.ceiling, device.closed_by) == (None, None)


async def test_a_request_above_the_ceiling_waits_and_is_not_too_large(by_hand: HandClock) -> None:
    guard = Opinion(40)
    admission = watched(capacity=100, devices=[Card(by_hand)], guards=[guard])
    look(admission)
    async with anyio.create_task_group() as group:
        async with admission.lease(30):
            group.start_soon(hold_and_release, admission, 80)
            await anyio.wait_all_tasks_blocked()
            assert admission.waiting == 1
        guard.limit = None
        look(admission)


async def hold_and_release(admission: Admission, size: int) -> None:
    (await admission.entrance.acquire(Estimate(size))).release()


async def test_a_guard_that_fails_has_no_say_and_is_logged_once(
    by_hand: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    guard = Opinion(0)
    admission = watched(capacity=100, devices=[Card(by_hand)], guards=[guard, Opinion(70, name="other")])
    look(admission)
    assert admission.snapshot().closed_by == "opinion"
    for _ in range(2):
        guard.error = ZeroDivisionError()
        look(admission, 3)
        assert admission.snapshot().devices[0].closed_by == "other"
        guard.error = None
        look(admission)
        assert admission.snapshot().closed_by == "opinion"
    assert caplog.text.count("guard 'opinion' failed") == 2


@pytest.mark.parametrize(("said", "ceiling"), [(-5, 0), (7.9, 7), (500, 500)])
async def test_a_ceiling_is_whole_bytes_and_never_negative(
    by_hand: HandClock, said: float, ceiling: int
) -> None:
    admission = watched(capacity=100, devices=[Card(by_hand)], guards=[Opinion(said)])
    look(admission)
    assert admission.snapshot().devices[0].ceiling == ceiling
    assert admission.snapshot().available == min(ceiling, 100)


async def test_each_device_has_its_own_copy_of_each_guard(by_hand: HandClock) -> None:
    admission = watched(
        capacity=100, devices=[Card(by_hand, name="a"), Card(by_hand, name="b")], guards=[OutOfMemoryGuard()]
    )
    admission.endings.report_outcome(end("oom"), device=1)
    assert [device.ceiling for device in admission.snapshot().devices] == [None, 80]


async def test_what_a_guard_wants_called_is_called_once_in_a_thread(
    by_hand: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    called = threading.Event()
    threads: list[str] = []

    def act() -> None:
        threads.append(threading.current_thread().name)
        called.set()
        raise ZeroDivisionError

    guard = Opinion(action=act)
    admission = watched(capacity=100, devices=[Card(by_hand)], guards=[guard])
    look(admission, 3)
    assert called.wait(30)
    for thread in threading.enumerate():
        if thread.name == "gpu-admission-action":
            thread.join(30)
    assert threads == ["gpu-admission-action"]
    assert "the action of guard 'opinion' failed" in caplog.text


@pytest.mark.parametrize("guard", [MemoryGuard(when_stale="close"), ThermalGuard()])
async def test_before_the_first_reading_guards_that_need_one_say_nothing(
    by_hand: HandClock, guard: Any, caplog: pytest.LogCaptureFixture
) -> None:
    admission = watched(capacity=100, devices=[Card(by_hand)], guards=[guard, Opinion(70)])
    with caplog.at_level(logging.INFO, "gpu_admission"):
        (await hold(admission, 70)).release()
    (device,) = admission.snapshot().devices
    assert (device.ceiling, device.closed_by, device.reading) == (70, "opinion", None)
    assert "no memory reading" not in caplog.text


async def test_a_guard_that_can_not_begin_is_logged_and_asked_all_the_same(
    by_hand: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    def begin(*args: Any, **options: Any) -> None:
        raise ZeroDivisionError

    admission = watched(capacity=100, devices=[Card(by_hand)], guards=[Opinion(70, begin=begin)])
    look(admission, 3)
    assert admission.snapshot().ceiling == 70
    assert caplog.text.count("guard 'opinion' failed to begin") == 1


async def test_an_action_may_be_none_and_a_guard_may_have_no_begin(by_hand: HandClock) -> None:
    admission = watched(capacity=100, devices=[Card(by_hand)], guards=[Opinion(action=None), FaultGuard()])
    look(admission)
    assert admission.snapshot().ceiling == 100


async def test_a_ceiling_is_told_when_it_has_moved_and_not_at_every_reading(
    by_hand: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    guard = Opinion()
    admission = watched(capacity=100, devices=[Card(by_hand)], guards=[guard])
    with caplog.at_level(logging.INFO, "gpu_admission"):
        for limit in (None, 99, 96, 93, 95, 80, 75, 78, 0, 0, 50, None):
            guard.limit, guard.reason = limit, "" if limit is None else f"leaves {limit}"
            look(admission)
    told = [(r.levelname, r.message) for r in caplog.records if r.message.startswith("card:")]
    assert told == [
        ("INFO", "card: guard 'opinion': leaves 80"),
        ("WARNING", "card: guard 'opinion': leaves 0"),
        ("INFO", "card: guard 'opinion': leaves 50"),
        ("INFO", "card: nothing limits it any more"),
    ]


async def test_of_closed_devices_the_first_to_open_is_named(by_hand: HandClock) -> None:
    soon = Opinion(0, name="soon", retry_at=by_hand() + 5)
    admission = watched(
        capacity=100,
        devices=[Card(by_hand, name="a"), Card(by_hand, name="b")],
        guards=[ByDevice({"a": Opinion(0, name="late", retry_at=by_hand() + 900), "b": soon})],
    )
    look(admission)
    with pytest.raises(Unavailable, match="guard 'soon' lets nothing start: because") as refused:
        await hold(admission, 1)
    assert 5 <= (refused.value.retry_after or 0) <= 8
    soon.limit = None
    look(admission)
    assert (await hold(admission, 1)).device == "b"


class ByDevice(Opinion):
    """Each device's copy speaks for itself, by the order in which they are made."""

    def __init__(self, opinions: dict[str, Opinion]) -> None:
        super().__init__()
        self._opinions = iter(opinions.values())

    def __deepcopy__(self, memo: object) -> Opinion:
        return next(self._opinions)


async def test_a_capacity_in_bytes_and_guards_without_devices_have_a_device_to_hang_on(
    by_hand: HandClock,
) -> None:
    admission = watched(capacity=100, guards=[OutOfMemoryGuard(opens_after=1)])
    look(admission)
    assert [device.name for device in admission.snapshot().devices] == ["device"]
    lease = await hold(admission, 10)
    lease.report_oom()
    lease.release()
    with pytest.raises(Unavailable, match="1 requests in a row ran out of memory"):
        await hold(admission, 1)


@pytest.mark.parametrize("guard", [MemoryGuard(), ThermalGuard()])
def test_a_guard_that_reads_a_device_needs_one(guard: Any) -> None:
    with pytest.raises(ValueError, match=f"guards: '{guard.name}' reads a device.*devices="):
        watched(capacity=100, guards=[guard])


def test_on_fault_is_for_the_default_guards_and_brings_them() -> None:
    with pytest.raises(ValueError, match=r"use FaultGuard\(on_fault=\.\.\.\)"):
        watched(capacity=100, guards=[OutOfMemoryGuard()], on_fault="exit")
    told: list[str] = []
    called = threading.Event()

    def on_fault(reason: str) -> None:
        told.append(reason)
        called.set()

    admission = watched(capacity=100, on_fault=on_fault)
    admission.endings.report_outcome(Outcome("fault", 1, "Xid"))
    assert admission.snapshot().closed_by == "fault"
    assert called.wait(30)
    assert told == ["a request failed with Xid"]


def test_a_guard_that_can_not_be_copied_is_refused(by_hand: HandClock) -> None:
    class Locked(FaultGuard):
        def __deepcopy__(self, memo: Any) -> FaultGuard:
            raise TypeError("cannot pickle '_thread.lock' object")

    with pytest.raises(TypeError, match="guards: 'fault' can't be copied for each device"):
        watched(devices=[Card(by_hand)], guards=[Locked()])


# outcomes


async def test_guards_hear_of_good_ends_with_the_next_reading_and_of_bad_ones_at_once(
    by_hand: HandClock,
) -> None:
    guard = Opinion()
    admission = watched(capacity=100, devices=[Card(by_hand)], guards=[guard])
    look(admission)
    (await hold(admission, 10)).release()
    assert guard.shown == []
    lease = await hold(admission, 20)
    lease.report_oom("MyOOM")
    lease.release()
    assert [(o.kind, o.bytes, o.error) for o in guard.shown] == [("ok", 10, ""), ("oom", 20, "MyOOM")]
    (await hold(admission, 10)).release()
    look(admission)
    assert [outcome.kind for outcome in guard.shown] == ["ok", "oom", "ok"]


async def test_of_very_many_ends_the_last_are_told(by_hand: HandClock) -> None:
    guard = Opinion()
    admission = watched(capacity=100, devices=[Card(by_hand)], guards=[guard])
    for number in range(3000):
        admission.endings.report_outcome(Outcome("ok", number))
    look(admission)
    assert [outcome.bytes for outcome in guard.shown] == list(range(3000 - 1024, 3000))


async def test_without_guards_nothing_is_remembered(by_hand: HandClock) -> None:
    admission = watched(capacity=100, devices=[Card(by_hand)], guards=[])
    admission.endings.report_outcome(end("fault"))
    look(admission)
    assert admission.snapshot().devices[0].reading is not None
    assert not admission.monitor._watched[0].outcomes


async def test_the_last_success_is_known_with_and_without_guards(by_hand: HandClock) -> None:
    for settings in ({}, {"devices": [Card(by_hand)]}):
        admission = watched(capacity=100, **settings)
        assert admission.snapshot().last_success is None
        failed = await hold(admission, 1)
        failed.finish(ValueError())
        assert admission.snapshot().last_success is None
        (await hold(admission, 1)).release()
        by_hand.pass_(5)
        assert admission.snapshot().last_success == 5


# threads and locks


async def test_verdicts_can_not_overtake_one_another(by_hand: HandClock) -> None:
    """A thread that was asked later, and answers sooner, is not overwritten by the earlier one."""

    class Interrupted(Opinion):
        other: threading.Thread | None = None

        def ceiling(self, *arguments: Any) -> int | None:
            if threading.current_thread() is not home:
                return None
            self.other = threading.Thread(target=admission.monitor.review, args=(0,))
            self.other.start()
            self.other.join(0.05)
            return 50

    home = threading.current_thread()
    guard = Interrupted()
    admission = watched(capacity=100, devices=[Card(by_hand)], guards=[guard])
    admission.monitor.review(0)
    assert guard.other is not None
    guard.other.join(30)
    assert admission.monitor.verdict(0).ceiling is None
    assert admission.snapshot().ceiling == 100


async def test_a_guard_may_look_at_the_admission_while_leases_end_everywhere(by_hand: HandClock) -> None:
    class Curious(Opinion):
        def ceiling(self, *arguments: Any) -> int | None:
            return 1000 - admission.snapshot().in_use

    admission = watched(capacity=1000, devices=[Card(by_hand)], guards=[Curious()])
    leases = [await hold(admission, 1) for _ in range(400)]
    start = threading.Barrier(5)

    def finish(part: list[Any]) -> None:
        start.wait(30)
        for lease in part:
            lease.report_oom()
            lease.release()

    def watch() -> None:
        start.wait(30)
        look(admission, 50)

    threads = [threading.Thread(target=finish, args=(leases[part::4],)) for part in range(4)]
    threads.append(threading.Thread(target=watch))
    for thread in threads:
        thread.start()
    for thread in threads:
        await anyio.to_thread.run_sync(thread.join, 30)
    assert not any(thread.is_alive() for thread in threads)
    assert admission.in_use == 0


async def test_a_lease_that_is_collected_while_guards_are_asked_is_ended_afterwards(
    by_hand: HandClock,
) -> None:
    """The collector runs wherever memory is taken, also inside a guard, with the lock held.

    While a thread that another test has left is collecting, ``gc.collect`` does nothing here; or it is that
    thread which meets the lease, and ends it as soon as the lock is free.
    """
    kept: list[weakref.ref[Any]] = []

    class Collecting(Opinion):
        def ceiling(self, *arguments: Any) -> int | None:
            gc.collect()
            while any(each() is not None for each in kept):
                gc.collect()
            return None

    def stream(lease: Any) -> Iterator[int]:
        with lease.keep():
            yield 1

    admission = watched(capacity=100, devices=[Card(by_hand)], guards=[Collecting()])
    lease = await hold(admission, 60)
    thrown_away: list[Any] = [stream(lease)]
    next(thrown_away[0])
    thrown_away.append(thrown_away)
    lease.report_oom()
    lease.release()
    assert admission.in_use == 60
    kept.append(weakref.ref(thrown_away[0]))
    del thrown_away
    look(admission)
    await until(lambda: admission.in_use == 0)


async def test_readings_run_from_start_to_stop_and_again() -> None:
    admission = watched(devices=[FixedDevice(100)])
    assert ticking() == []
    for _ in range(2):
        await admission.startup.begin()
        (thread,) = ticking()
        await admission.startup.begin()
        assert ticking() == [thread]
        admission.startup.stop()
        await anyio.to_thread.run_sync(thread.join, 30)
        assert ticking() == []
    admission.startup.stop()


async def test_the_first_request_starts_them_and_closing_ends_them() -> None:
    admission = watched(devices=[FixedDevice(100)])
    (await hold(admission, 10)).release()
    (thread,) = ticking()
    await admission.aclose()
    await anyio.to_thread.run_sync(thread.join, 30)
    assert ticking() == []
    with pytest.raises(Unavailable, match="shutting down"):
        await hold(admission, 10)


async def test_what_the_loop_reads_comes_into_force_by_itself() -> None:
    """Nobody steps here: the thread looks, and a waiter is let in by it."""
    closed, opened = threading.Event(), threading.Event()

    class Opening(Opinion):
        def ceiling(self, *arguments: Any) -> int | None:
            closed.set()
            return None if opened.is_set() else 1

    admission = watched(capacity=100, devices=[FixedDevice(100)], guards=[Opening()])
    async with anyio.create_task_group() as group:
        await admission.startup.begin()
        await anyio.to_thread.run_sync(closed.wait, 30)
        group.start_soon(hold_and_release, admission, 50)
        opened.set()
    await admission.aclose()
    assert admission.snapshot().counts["admitted"] == 1


async def test_without_devices_there_is_nothing_to_stop() -> None:
    admission = watched(capacity=100)
    await admission.startup.begin()
    await admission.aclose()
    assert ticking() == []


def test_nothing_runs_and_nothing_is_read_at_construction(by_hand: HandClock) -> None:
    card = Card(by_hand)
    before = threading.active_count()
    admission = watched(devices=[card], guards=[ThermalGuard(), MemoryGuard()])
    assert (card.reads, threading.active_count()) == ([], before)
    assert isinstance(admission.monitor.readings, Readings)
