"""``Admission(shared=...)``: several admissions on one budget, as their users see them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from gpu_admission import Admission, Lane, QueueFull, QueueTimeout, Rejected, TooLarge, Unavailable
from gpu_admission.admission.startline import start_line
from gpu_admission.errors import ClientLeft
from gpu_admission.guards.health import readiness
from gpu_admission.shared.memory import MemoryHub, MemoryLog
from gpu_admission.shared.operations import Gone, encode
from gpu_admission.shared.process import boot_seconds
from gpu_admission.testing import FakeDevice, settle
from gpu_admission.types import Estimate, Event
from tests.waiting import until_async

pytestmark = pytest.mark.anyio


@pytest.fixture
def place(tmp_path: Path) -> str:
    """A folder that two processes may share."""
    return str(tmp_path / "gpu0")


def on(shared: Any, **settings: Any) -> Admission:
    return Admission(**({"capacity": 100, "estimator": 1, "timeout": 5.0, "shared": shared} | settings))


class Pair:
    """Two admissions that share a budget, as two processes would."""

    def __init__(self, first: Admission, second: Admission) -> None:
        self.both = first, second

    def __iter__(self) -> Iterator[Admission]:
        return iter(self.both)

    async def __aenter__(self) -> Pair:
        for each in self.both:
            await each.startup.begin()
        return self

    async def __aexit__(self, *error: object) -> None:
        for each in self.both:
            await each.aclose()


def pair(place: str, **settings: Any) -> Pair:
    return Pair(on(place, **settings), on(place, **settings))


async def until_waiting(admission: Admission, count: int) -> None:
    await until_async(lambda: admission.snapshot().waiting == count)


async def until_told(*admissions: Admission) -> None:
    """What has ended is told to other processes within a moment."""
    shared: list[Any] = [each.locked for each in admissions]
    await until_async(lambda: not any(each._shared._member.untold for each in shared))


async def test_what_one_process_holds_is_not_free_in_another(place: str) -> None:
    async with pair(place) as (first, second):
        async with first.lease(70):
            with pytest.raises(QueueTimeout, match="timeout=0"):
                await second.entrance.acquire(Estimate(40), timeout=0)
            assert second.snapshot().in_use == 70
        (await second.entrance.acquire(Estimate(100))).release()
        await until_told(first, second)
        assert first.snapshot().in_use == 0


async def test_bytes_given_back_in_one_process_start_a_request_of_another(place: str) -> None:
    async with pair(place) as (first, second), anyio.create_task_group() as group:
        lease = await first.entrance.acquire(Estimate(70))

        async def wait() -> None:
            async with second.lease(40) as late:
                assert late.waited > 0

        group.start_soon(wait)
        await until_waiting(second, 1)
        assert first.queue()[0].bytes == 40  # any of them shows the whole queue
        lease.release()


async def test_a_budget_begins_with_its_first_request_where_no_server_begins_it(place: str) -> None:
    admission = on(place)
    assert admission.snapshot().members == ()
    async with admission.lease(10):
        (member,) = admission.snapshot().members
        assert (member.pid, member.bytes, member.running, member.is_self) == (os.getpid(), 10, 1, True)
    await admission.aclose()


async def test_the_snapshot_says_who_holds_what(place: str) -> None:
    async with pair(place) as (first, second), first.lease(70):
        members = second.snapshot().members
        assert sorted(member.bytes for member in members) == [0, 70]
        assert second.snapshot().shared == place
        assert [member.is_self for member in members].count(True) == 1
        assert second.snapshot().to_dict()["members"][0]["host"]


async def test_refusals_are_those_of_a_budget_of_ones_own(place: str) -> None:
    async with pair(place, max_waiting=1) as (first, second), anyio.create_task_group() as group:
        with pytest.raises(TooLarge, match="capacity=100 B"):
            await second.entrance.acquire(Estimate(101))
        lease = await first.entrance.acquire(Estimate(100))
        group.start_soon(first.entrance.acquire, Estimate(100))
        await until_waiting(first, 1)
        with pytest.raises(QueueFull, match="max_waiting=1"):
            await second.entrance.acquire(Estimate(10))
        group.cancel_scope.cancel()
    lease.release()


async def test_a_client_that_leaves_gives_its_place_up_in_every_process(place: str) -> None:
    async with pair(place) as (first, second):
        left = anyio.Event()
        lease = await first.entrance.acquire(Estimate(100))
        async with anyio.create_task_group() as group:

            async def ask() -> None:
                with pytest.raises(ClientLeft):
                    await second.entrance.acquire(Estimate(10), gone=left.wait)

            group.start_soon(ask)
            await until_waiting(first, 1)
            left.set()
        assert first.snapshot().waiting == 0
        lease.release()


async def test_a_cancelled_request_leaves_nothing_behind(place: str) -> None:
    async with pair(place) as (first, second):
        lease = await first.entrance.acquire(Estimate(100))
        with anyio.move_on_after(0.05):
            await second.entrance.acquire(Estimate(10))
        assert first.snapshot().waiting == 0
        lease.release()
        assert first.snapshot().in_use == second.snapshot().in_use == 0


async def test_draining_a_process_refuses_there_and_leaves_the_others_alone(place: str) -> None:
    async with pair(place) as (first, second), anyio.create_task_group() as group:
        lease = await second.entrance.acquire(Estimate(100))

        async def ask() -> None:
            with pytest.raises(Unavailable, match=r"drain\(\) was called"):
                await first.entrance.acquire(Estimate(10))

        group.start_soon(ask)
        await until_waiting(second, 1)
        first.drain()
        await until_waiting(second, 0)
        with pytest.raises(Unavailable, match="shutting down"):
            first.entrance.check_open()
        assert first.snapshot().draining
        assert not second.snapshot().draining
        lease.release()
        (await second.entrance.acquire(Estimate(100))).release()


async def test_a_process_that_ends_while_it_holds_bytes_leaves_with_the_last_of_them(place: str) -> None:
    async with pair(place) as (first, second):
        lease = await first.entrance.acquire(Estimate(70))
        await first.aclose()
        assert second.snapshot().in_use == 70
        lease.release()
        await until_async(lambda: len(second.snapshot().members) == 1)
        assert second.snapshot().in_use == 0


async def test_a_new_capacity_is_in_force_in_every_process(place: str) -> None:
    async with pair(place) as (first, second):
        first.resize(200)
        (await second.entrance.acquire(Estimate(150))).release()
        assert second.snapshot().capacity == 200


async def test_a_lease_grows_only_where_no_process_has_taken_the_room(place: str) -> None:
    async with pair(place) as (first, second):
        async with first.lease(50) as mine, second.lease(40):
            mine.resize(60)
            assert second.snapshot().in_use == 100
            with pytest.raises(QueueFull, match="growing to 61 B"):
                mine.resize(61)
            mine.resize(10)
            assert second.snapshot().in_use == 50
        await until_told(first, second)
        assert second.snapshot().in_use == 0


async def test_a_kept_lease_stays_counted_in_every_process(place: str) -> None:
    async with pair(place) as (first, second):
        async with first.lease(50) as lease:
            handle = lease.keep()
        assert second.snapshot().in_use == 50
        handle.close()
        await until_told(first, second)
        assert second.snapshot().in_use == 0


async def test_events_tell_seconds_whatever_the_clock_of_the_log(place: str) -> None:
    events: list[Event] = []
    async with pair(place, observers=[events.append]) as (first, _), first.lease(10) as lease:
        assert 0 <= lease.waited < 5
    assert [event.kind for event in events if event.lease] == ["admitted", "released"]
    assert 0 <= events[-1].held < 5


async def test_shadow_counts_what_it_would_have_done_and_holds_no_one_up(place: str) -> None:
    async with pair(place, mode="shadow") as (first, second):
        async with first.lease(70), second.lease(40):
            assert first.snapshot().in_use == second.snapshot().in_use == 110
        await until_told(first, second)
        assert first.snapshot().in_use == second.snapshot().in_use == 0
        assert second.snapshot().counts["shadow_waited"] == 1


# a log that is away, and one that is slow


def hub(**settings: Any) -> MemoryHub:
    return MemoryHub(clock=boot_seconds, knows_deaths=True, **settings)


async def test_while_the_budget_is_away_one_waits_until_its_timeout_and_is_refused_with_503() -> None:
    log = MemoryLog(hub())
    async with Pair(on(log), on(None)) as (admission, _):
        lease = await admission.entrance.acquire(Estimate(10))
        log.cut()
        with pytest.raises(Unavailable, match="the memory log was cut off") as refused:
            await admission.entrance.acquire(Estimate(10), timeout=0.05)
        assert refused.value.reason == "budget_unreachable"
        admission.entrance.refused(refused.value)
        assert refused.value.status == 503
        assert refused.value.retry_after
        assert "shared=" in refused.value.detail
        assert admission.snapshot().away
        lease.release()


async def test_what_waits_while_the_budget_is_away_starts_when_it_is_back() -> None:
    log = MemoryLog(hub())
    async with Pair(on(log), on(None)) as (admission, _), anyio.create_task_group() as group:
        log.cut()
        done = anyio.Event()

        async def ask() -> None:
            async with admission.lease(10):
                done.set()

        group.start_soon(ask)
        await settle()
        assert not done.is_set()
        log.mend()
        with anyio.fail_after(10):
            await done.wait()
    assert admission.snapshot().in_use == 0


async def test_when_too_much_has_piled_up_while_the_budget_is_away_a_request_is_refused_with_503(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = MemoryLog(hub())
    async with Pair(on(log), on(None)) as (admission, _):
        log.cut()
        with monkeypatch.context() as patch:
            patch.setattr("gpu_admission.shared.outbox.MOST_UNSAID", 0)
            with pytest.raises(Unavailable, match="was cut off") as refused:
                await admission.entrance.acquire(Estimate(10), timeout=60)
        assert (refused.value.reason, refused.value.status) == ("budget_unreachable", 503)
        log.mend()
        async with admission.lease(100):
            pass
    assert admission.snapshot().in_use == 0


async def test_a_share_is_granted_by_oneself_while_the_budget_is_away() -> None:
    log = MemoryLog(hub())
    async with Pair(on(log, shared_fallback=0.25), on(None)) as (admission, _):
        log.cut()
        async with admission.lease(25):
            with pytest.raises(Unavailable, match=r"shared_fallback=0\.25"):
                await admission.entrance.acquire(Estimate(1), timeout=0)
            log.mend()
            assert admission.snapshot().in_use == 25
        assert admission.snapshot().in_use == 0


async def test_a_refusal_says_why_the_share_of_ones_own_does_not_help() -> None:
    log, unheard = MemoryLog(hub()), MemoryLog(hub())
    unheard.is_cut = True
    async with Pair(on(log, shared_fallback=0.25), on(unheard, shared_fallback=0.25)) as (admission, never):
        log.cut()
        with pytest.raises(Unavailable, match=r"meanwhile: 25 B of a device, and this needs 40 B$"):
            await admission.entrance.acquire(Estimate(40), timeout=0)
        with pytest.raises(Unavailable, match=r"meanwhile: nothing, since it was never reached$"):
            await never.entrance.acquire(Estimate(20), timeout=0)
        async with admission.lease(20):
            with pytest.raises(Unavailable, match=r"meanwhile$"):
                await admission.entrance.acquire(Estimate(20), timeout=0)


async def test_a_timeout_of_0_still_lets_the_budget_answer() -> None:
    place = hub(instant=False)
    log = MemoryLog(place)
    async with Pair(on(log, timeout=0), on(None)) as (admission, _), anyio.create_task_group() as group:
        done = anyio.Event()

        async def ask() -> None:
            async with admission.lease(10):
                done.set()

        group.start_soon(ask)
        with anyio.fail_after(10):
            while not done.is_set():
                await anyio.sleep(0.01)
                log.deliver()


async def test_one_that_is_cancelled_before_its_grant_came_back_holds_nothing() -> None:
    place = hub(instant=False)
    log = MemoryLog(place)
    async with Pair(on(log), on(None)) as (admission, _):
        log.deliver()
        with anyio.move_on_after(0.02):
            await admission.entrance.acquire(Estimate(10))
        log.deliver()
        log.deliver()
        assert admission.snapshot().in_use == 0


# what was refused is over


async def test_what_was_refused_at_once_is_never_asked_for_again(place: str) -> None:
    first, second = pair(place, max_waiting=0)
    async with Pair(first, second):
        lease = await first.entrance.acquire(Estimate(100))
        for size in (10, 101):
            with pytest.raises(Rejected):
                await second.entrance.acquire(Estimate(size))
        await drop(second)
        lease.release()
        await until_async(lambda: second.snapshot().in_use == 0)
        ours: Any = second.locked
        await until_async(lambda: ours._shared.is_in)
        assert (second.snapshot().waiting, len(ours._shared.own)) == (0, 0)


async def drop(admission: Admission) -> None:
    """Have it be evicted, and joined again."""
    ours: Any = admission.locked
    name = ours._shared.member
    with ours.turn:
        ours._shared.log.append(encode("", 0, Gone(name, certain=False)))
    await until_async(lambda: ours._shared.member != name)


async def test_one_that_is_refused_before_it_waits_leaves_nothing_behind() -> None:
    log = MemoryLog(hub(instant=False))
    admission = on(log, max_waiting=0)
    admission.locked._shared.start(pulse=False)  # type: ignore[attr-defined]
    log.deliver()
    with pytest.raises(TooLarge):
        await admission.entrance.acquire(Estimate(101), queued=lambda ticket: log.deliver())
    assert len(admission.locked._shared.own) == 0  # type: ignore[attr-defined]
    await admission.aclose()


# a log that has begun anew


def begun_anew() -> tuple[MemoryHub, Admission]:
    """A budget that grants nothing for ten seconds, as one on a Redis that was empty."""
    place = hub()
    place.open(10.0)
    return place, on(MemoryLog(place), timeout=2.0)


def says_when_it_grants(admission: Admission, refused: Unavailable) -> None:
    admission.entrance.refused(refused)
    assert (refused.reason, refused.status) == ("budget_unreachable", 503)
    assert "the shared budget memory begins anew and grants nothing for another " in refused.detail
    assert "(lease_ttl=10 s)" in refused.detail
    assert 1 <= (refused.retry_after or 0) <= 10


async def test_one_that_can_not_wait_until_a_new_budget_grants_is_told_so_at_once() -> None:
    _, admission = begun_anew()
    async with Pair(admission, on(None)):
        with pytest.raises(Unavailable) as refused:
            await admission.entrance.acquire(Estimate(10))
        says_when_it_grants(admission, refused.value)
        assert refused.value.waited < 2.0
        seconds = float(refused.value.detail.partition("another ")[2].partition(" s")[0])
        assert refused.value.retry_after in (math.ceil(seconds), math.ceil(seconds) + 1)
        assert admission.snapshot().waiting == 0


async def test_what_can_never_fit_a_new_budget_is_refused_for_that() -> None:
    _, admission = begun_anew()
    async with Pair(admission, on(None)):
        with pytest.raises(TooLarge):
            await admission.entrance.acquire(Estimate(101))


async def test_a_new_budget_in_which_nobody_may_wait_says_that_it_is_new() -> None:
    place = hub()
    place.open(10.0)
    admission = on(MemoryLog(place), max_waiting=0)
    async with Pair(admission, on(None)):
        with pytest.raises(Unavailable) as refused:
            await admission.entrance.acquire(Estimate(10))
        says_when_it_grants(admission, refused.value)


async def test_one_whose_time_is_up_after_the_budget_began_anew_is_told_so() -> None:
    place = hub()
    log = MemoryLog(place)
    admission = on(log)
    async with Pair(admission, on(None)), anyio.create_task_group() as group:
        lease = await admission.entrance.acquire(Estimate(100))

        async def ask() -> None:
            with pytest.raises(Unavailable) as refused:
                await admission.entrance.acquire(Estimate(10), timeout=0.5)
            says_when_it_grants(admission, refused.value)
            lease.release()

        group.start_soon(ask)
        await until_waiting(admission, 1)
        place.lose()
        log.catch_up()


async def test_one_that_may_wait_so_long_starts_when_a_new_budget_grants() -> None:
    place = hub()
    place.open(0.2)
    admission = on(MemoryLog(place))
    async with Pair(admission, on(None)), admission.lease(10) as lease:
        assert lease.waited > 0
        assert admission.snapshot().settles is None


async def test_a_process_is_not_ready_until_a_new_budget_grants() -> None:
    _, admission = begun_anew()
    async with Pair(admission, on(None)):
        snapshot = admission.snapshot()
        report = readiness(snapshot)
        assert snapshot.away is None
        assert 0 < report["settles_seconds"] <= 10
        assert (report["ready"], report["status"]) == (False, "shared budget begins anew")


async def test_a_process_that_began_while_the_budget_is_away_is_ready_when_it_is_reached() -> None:
    place = hub()
    here, log = MemoryLog(place), MemoryLog(place)
    log.is_cut = True
    async with Pair(on(here), on(log)) as (old, new):
        here.cut()
        assert readiness(old.snapshot())["ready"], "what waits goes on when it is back"
        report = readiness(new.snapshot())
        assert (report["ready"], report["status"]) == (False, "shared budget unreachable")
        assert "the memory log was cut off" in report["away"]
        with pytest.raises(Unavailable):
            await new.entrance.acquire(Estimate(1), timeout=0)
        log.mend()
        report = readiness(new.snapshot())
        assert (report["ready"], report["away"]) == (True, None)


async def test_watching_only_a_process_is_ready_without_its_budget() -> None:
    log = MemoryLog(hub())
    log.is_cut = True
    async with Pair(on(log, mode="shadow"), on(None)) as (admission, _):
        assert readiness(admission.snapshot())["ready"]
        async with admission.lease(10):
            pass


# settings


async def test_a_place_that_others_may_use_is_refused_at_the_start(tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir(mode=0o755)
    open_to_all.chmod(0o755)
    with pytest.raises(ValueError, match="shared="):
        await on(str(open_to_all)).startup.begin()


async def test_watching_only_a_place_that_others_may_use_is_logged_and_holds_no_one_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o755)
    admission = on(str(open_to_all), mode="shadow")
    async with admission.lease(10):
        await until_async(lambda: "shared=" in caplog.text)
    await admission.aclose()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"shared": "gpu0"}, "shared='gpu0' must be an absolute path"),
        ({"shared": 5}, "shared must be a folder"),
        ({"shared": "/x", "placement": lambda *asked: 0}, "placement: processes that share"),
        ({"shared_fallback": 1.0}, "shared_fallback is a share"),
        ({"lease_ttl": 0.5}, "lease_ttl must be 1 second or more"),
        ({"lease_ttl": math.inf}, "lease_ttl must be 1 second or more"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises((TypeError, ValueError), match=sentence):
        on(**({"shared": None} | settings))


def test_a_password_is_never_logged() -> None:
    admission = on("redis://user:secret@host/0?name=gpu0")
    line = start_line(admission.settings, 100, ["device"])
    assert "secret" not in line
    assert "host" in line


async def test_lanes_that_only_another_process_has_do_no_harm(place: str) -> None:
    first = on(place, lanes=[Lane("short")])
    second = on(place, lanes=[Lane("a"), Lane("b"), Lane("short")])
    async with Pair(first, second), first.lease(10) as lease:
        assert lease.lane == "short"
        first.snapshot()


async def test_a_full_line_of_another_lane_refuses_nobody(place: str) -> None:
    first = on(place, lanes=[Lane("short")])
    second = on(place, lanes=[Lane("long", max_waiting=1), Lane("short")])
    async with Pair(first, second), anyio.create_task_group() as group:
        lease = await second.entrance.acquire(Estimate(100))
        group.start_soon(partial(second.entrance.acquire, Estimate(10)))
        await until_waiting(first, 1)
        first.entrance.check_open()
        group.cancel_scope.cancel()
        lease.release()


async def test_what_a_batch_lacks_is_told_by_the_lane_in_force(place: str) -> None:
    first = on(place, lanes=[Lane("a"), Lane("b")])
    second = on(place, lanes=[Lane("only", limit=0.5)])
    async with Pair(first, second):
        await until_async(lambda: first.locked.lane_names == ("only",))
        refused = first.entrance.no_more(90, 80, 80, 1)
        assert (refused.reason, refused.capacity) == ("too_large", 50)


def test_two_budgets_for_one_device_that_are_not_shared_are_warned_of(
    caplog: pytest.LogCaptureFixture, place: str
) -> None:
    card = FakeDevice(total=100)
    first = on(None, devices=[card], name="chat")
    second = on(None, devices=[card], name="images")
    (said,) = [record.getMessage() for record in caplog.records]
    assert "two budgets in this process" in said
    assert "shared=" in said
    caplog.clear()
    third, fourth = on(place, devices=[card]), on(place, devices=[card])
    assert not caplog.records
    assert {first.largest, second.largest, third.largest, fourth.largest} == {100}


# which devices they count

CARDS = [FakeDevice(100, name="one"), FakeDevice(100, name="two")]


@pytest.mark.parametrize(
    ("theirs", "mine", "sentence"),
    [
        ({"devices": CARDS}, {"devices": CARDS[:1]}, "2 devices, and by this process with 1"),
        ({"devices": CARDS[:1]}, {"devices": CARDS}, "1 device, and by this process with 2"),
        ({"devices": CARDS}, {}, "2 devices, and by this process with 1"),
        ({"devices": CARDS}, {"devices": CARDS[::-1]}, "the same devices in another order"),
    ],
)
async def test_one_that_counts_other_devices_is_refused_at_its_start(
    theirs: dict[str, Any], mine: dict[str, Any], sentence: str, place: str
) -> None:
    """It would be granted bytes of a device that it does not have, or of another than it uses."""
    first, second, after = on(place, **theirs), on(place, **mine), on(place, **mine)
    await first.startup.begin()
    with pytest.raises(ValueError, match=rf"{place}.*{sentence}.*devices=.*stop the others"):
        await second.startup.begin()
    assert first.snapshot().capacity == 100 * len(theirs["devices"])
    await first.aclose()
    async with after.lease(10):
        pass
    await after.aclose()


async def test_one_that_names_no_devices_uses_any_of_those_that_others_count(place: str) -> None:
    first, guest = on(place, devices=CARDS), on(place, capacity=None)
    async with Pair(guest, first):  # as the first of all, it has measured a device of its own
        await until_async(lambda: guest.snapshot().capacity == 200)
        leases = [await guest.entrance.acquire(Estimate(60)) for _ in range(2)]
        assert [lease.device_index for lease in leases] == [0, 1]
        assert leases[1].device == "device 1"
        for lease in leases:
            with lease.on_device():
                guest.monitor.ended(lease.device_index, "oom", 60, "OutOfMemoryError", 1.0)
            lease.release()


# one device, measured by all


def look(admission: Admission) -> None:
    readings = admission.monitor.readings
    assert readings is not None
    readings.step()


async def until_it_holds(condition: Callable[[], bool], *looking: Admission) -> None:
    with anyio.fail_after(20):
        while not condition():
            for each in looking:
                await anyio.to_thread.run_sync(look, each)
            await anyio.sleep(0.02)


@pytest.mark.usefixtures("by_hand")
async def test_a_measured_capacity_is_the_devices_whatever_each_process_has_loaded(place: str) -> None:
    mine, theirs = FakeDevice(80, ours=8, name="card"), FakeDevice(80, foreign=8, ours=10, name="card")
    first = on(place, devices=[mine], capacity=None, margin=0)
    second = on(place, devices=[theirs], capacity=None, margin=0)
    await first.startup.begin()
    assert first.snapshot().capacity == 72
    mine.foreign = 10  # the second has loaded its model
    await second.startup.begin()
    assert first.snapshot().capacity == second.snapshot().capacity == 80 - 8 - 10

    async with first.lease(30):
        mine.ours = theirs.foreign = 38  # its work really takes them
        look(first)
        await until_it_holds(lambda: second.locked.taken_by_others(0) == 30)
        look(second)
        # What leases of one take is no stranger's in the other: only what it has loaded is.
        (card,) = second.snapshot().devices
        assert card.reading is not None
        assert card.reading.used is not None
        assert card.reading.ours is not None
        assert card.reading.used - card.reading.ours == 8
        assert (second.snapshot().capacity, second.snapshot().ceiling) == (62, 62)
        mine.ours = theirs.foreign = 8
    await second.aclose()
    mine.foreign = 0
    await until_it_holds(lambda: first.snapshot().capacity == 72, first)
    await first.aclose()


class Closed:
    """A guard that lets nothing start while it is told so."""

    name = "mine"
    reason = "the fan is broken"
    retry_at: float | None = None

    def __init__(self) -> None:
        self.is_closed = False

    def __deepcopy__(self, memo: object) -> Closed:
        return self

    def ceiling(self, readings: object, outcomes: object, now: float) -> int | None:
        return 0 if self.is_closed else None


async def test_a_guard_that_closes_in_one_process_is_named_by_the_others(place: str) -> None:
    guard = Closed()
    first, second = on(place, guards=(guard,)), on(place)
    async with Pair(first, second), anyio.create_task_group() as group:
        held = await second.entrance.acquire(Estimate(70))
        refused: list[Unavailable] = []

        async def wait() -> None:
            with pytest.raises(Unavailable) as said:
                await second.entrance.acquire(Estimate(70))
            refused.append(said.value)

        group.start_soon(wait)
        await until_waiting(second, 1)
        guard.is_closed = True
        await anyio.to_thread.run_sync(first.monitor.review, 0)
        await until_async(lambda: refused)
        assert (refused[0].reason, refused[0].status) == ("gpu_unavailable", 503)
        assert "guard 'mine' lets nothing start: the fan is broken" in refused[0].detail
        with pytest.raises(Unavailable, match="in another process of the shared budget"):
            await second.entrance.acquire(Estimate(10))
        guard.is_closed = False
        await anyio.to_thread.run_sync(first.monitor.review, 0)
        (await second.entrance.acquire(Estimate(10))).release()
        held.release()


async def test_a_process_leaves_at_the_servers_shutdown_and_comes_back_with_its_next_request(
    place: str,
) -> None:
    async with pair(place) as (first, second):
        lease = await first.entrance.acquire(Estimate(30))
        await first.locked.rest()
        assert len(second.snapshot().members) == 2, "its work runs on"
        lease.release()
        await first.locked.rest()
        assert [member.is_self for member in second.snapshot().members] == [True]
        async with first.lease(40):
            assert second.snapshot().in_use == 40
        assert len(second.snapshot().members) == 2
