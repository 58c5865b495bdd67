"""The controller: asking, waiting, refusing, changing the whole, and what is told of it."""

from __future__ import annotations

import gc
import json
import logging
import signal
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
import trio.testing

from gpu_admission import (
    Admission,
    Lane,
    Lease,
    QueueFull,
    QueueTimeout,
    Rejected,
    TooLarge,
    Unavailable,
)
from gpu_admission.admission.refusals import retry_after
from gpu_admission.devices import FixedDevice
from gpu_admission.errors import ClientLeft
from gpu_admission.types import Estimate, Event
from tests.cases.clock import Clock
from tests.cases.harness import settle

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """With a clock that moves when told."""
    options = {"clock": trio.testing.MockClock()} if request.param == "trio" else {"use_uvloop": False}
    return request.param, options


class Asker:
    """One task that asks for bytes and holds them until told."""

    def __init__(self, size: int, how: dict[str, Any]) -> None:
        self.size = size
        self.how = how
        self.lease: Lease | None = None
        self.error: BaseException | None = None
        self.scope = anyio.CancelScope()
        self._over = anyio.Event()

    async def run(self, admission: Admission) -> None:
        with self.scope:
            try:
                self.lease = await admission.entrance.acquire(Estimate(self.size), **self.how)
                await self._over.wait()
            except (Rejected, ClientLeft) as error:
                self.error = error
            finally:
                if self.lease is not None:
                    self.lease.release()

    def end(self) -> None:
        self._over.set()

    @property
    def state(self) -> str:
        """``held``, ``waiting``, or the reason of its refusal."""
        if self.error is not None:
            return getattr(self.error, "reason", type(self.error).__name__)
        if self.lease is None:
            return "cancelled" if self.scope.cancelled_caught else "waiting"
        return "ended" if self.lease.ended else "held"


class Room:
    """An admission of 100 bytes with its askers, and the clock of the loop."""

    def __init__(self, group: anyio.abc.TaskGroup, **settings: Any) -> None:
        self.events: list[Event] = []
        options = {"capacity": 100, "estimator": 1, "observers": [self.events.append], **settings}
        self.admission = Admission(**options)
        self.clock = Clock()
        self._group = group
        self.askers: list[Asker] = []

    async def ask(self, size: int, **how: Any) -> Asker:
        asker = Asker(size, how)
        self.askers.append(asker)
        self._group.start_soon(asker.run, self.admission)
        await self.clock.turn()
        return asker

    async def end(self, asker: Asker) -> None:
        asker.end()
        await self.clock.turn()

    async def cancel(self, asker: Asker) -> None:
        asker.scope.cancel()
        await self.clock.turn()

    async def pass_time(self, seconds: float) -> None:
        self.clock.jump(seconds)
        await self.clock.turn()

    @property
    def states(self) -> list[str]:
        return [asker.state for asker in self.askers]

    async def close(self) -> None:
        for asker in self.askers:
            asker.end()
            asker.scope.cancel()
        await self.clock.turn()
        rest = self.admission.snapshot()
        assert (rest.in_use, rest.running, rest.waiting, rest.waiting_bytes) == (0, 0, 0, 0)

    def kinds(self) -> Counter[str]:
        return Counter(event.kind for event in self.events)


# asking and waiting


async def test_what_fits_is_held_at_once_and_the_rest_waits_in_line() -> None:
    async with anyio.create_task_group() as group:
        room = Room(group)
        first, second = await room.ask(60), await room.ask(60)
        await room.ask(60)
        assert room.states == ["held", "waiting", "waiting"]
        await room.end(first)
        assert room.states == ["ended", "held", "waiting"]
        await room.cancel(second)
        assert room.states == ["ended", "ended", "held"]
        await room.close()


async def test_a_wait_is_measured_and_told() -> None:
    async with anyio.create_task_group() as group:
        room = Room(group)
        first, second = await room.ask(100), await room.ask(100)
        await room.end(first)
        assert first.lease is not None
        assert second.lease is not None
        assert first.lease.waited == 0.0
        assert second.lease.waited > 0.0
        await room.close()


async def test_nobody_waits_longer_than_the_timeout() -> None:
    async with anyio.create_task_group() as group:
        room = Room(group, timeout=30.0)
        await room.ask(100)
        waiter = await room.ask(50)
        await room.pass_time(29.9)
        assert waiter.state == "waiting"
        await room.pass_time(0.2)
        assert waiter.state == "queue_timeout"
        assert isinstance(waiter.error, QueueTimeout)
        assert waiter.error.detail == "50 B were not free within timeout=30 s"
        await room.close()


async def test_a_timeout_never_touches_what_runs() -> None:
    async with anyio.create_task_group() as group:
        room = Room(group, timeout=1.0)
        await room.ask(100)
        await room.pass_time(1000.0)
        assert room.states == ["held"]
        await room.close()


async def test_a_timeout_without_end_waits_without_end() -> None:
    async with anyio.create_task_group() as group:
        room = Room(group, timeout=float("inf"))
        first, _ = await room.ask(100), await room.ask(100)
        await room.pass_time(1e6)
        assert room.states == ["held", "waiting"]
        await room.end(first)
        assert room.states == ["ended", "held"]
        await room.close()


async def test_a_timeout_of_zero_takes_what_is_free_and_waits_for_nothing() -> None:
    async with anyio.create_task_group() as group:
        room = Room(group, timeout=0)
        await room.ask(60)
        await room.ask(40)
        await room.ask(1)
        assert room.states == ["held", "held", "queue_timeout"]
        await room.close()


async def test_one_call_may_have_a_timeout_of_its_own() -> None:
    async with anyio.create_task_group() as group:
        room = Room(group, timeout=30.0)
        await room.ask(100)
        short, long = await room.ask(50, timeout=1.0), await room.ask(50, timeout=60.0)
        await room.pass_time(2.0)
        assert (short.state, long.state) == ("queue_timeout", "waiting")
        await room.pass_time(57.0)
        assert long.state == "waiting"
        await room.pass_time(2.0)
        assert long.state == "queue_timeout"
        await room.close()


async def test_a_deadline_shortens_the_wait_and_never_lengthens_it() -> None:
    async with anyio.create_task_group() as group:
        room = Room(group, timeout=30.0)
        await room.ask(100)
        short = await room.ask(50, deadline=2.0)
        long = await room.ask(50, deadline=100.0)
        none = await room.ask(50, deadline=None)
        await room.pass_time(2.1)
        assert (short.state, long.state, none.state) == ("deadline", "waiting", "waiting")
        assert isinstance(short.error, QueueTimeout)
        assert "own deadline of 2 s" in short.error.detail
        await room.pass_time(28.0)
        assert (long.state, none.state) == ("queue_timeout", "queue_timeout")
        await room.close()


async def test_a_deadline_that_is_no_number_leaves_nobody_in_line() -> None:
    admission = Admission(capacity=100, estimator=1)
    lease = await admission.entrance.acquire(Estimate(100))
    with pytest.raises(TypeError):
        await admission.entrance.acquire(Estimate(100), deadline="soon")  # type: ignore[arg-type]
    assert admission.waiting == 0
    lease.release()


async def test_a_client_that_leaves_is_taken_out_of_the_line() -> None:
    async with anyio.create_task_group() as group:
        room = Room(group)
        leaves = anyio.Event()
        first = await room.ask(60)
        gone = await room.ask(60, gone=leaves.wait)
        behind = await room.ask(60)
        leaves.set()
        await room.clock.turn()
        assert gone.state == "ClientLeft"
        await room.end(first)
        assert behind.state == "held"
        await room.close()


async def test_a_client_that_leaves_as_it_is_granted_hands_its_bytes_on() -> None:
    async with anyio.create_task_group() as group:
        room = Room(group)
        leaves = anyio.Event()
        first = await room.ask(100)
        gone, behind = await room.ask(100, gone=leaves.wait), await room.ask(100)
        assert first.lease is not None
        leaves.set()
        first.lease.release()
        await room.clock.turn()
        assert (gone.state, behind.state) == ("ClientLeft", "held")
        await room.close()


async def test_of_those_who_wait_for_somebody_who_stays_nobody_is_missed() -> None:
    async with anyio.create_task_group() as group:
        room = Room(group)
        first = await room.ask(100)
        waiter = await room.ask(100, gone=anyio.sleep_forever)
        await room.end(first)
        assert waiter.state == "held"
        await room.close()


# refusals


async def test_what_can_never_fit_is_refused_at_once() -> None:
    async with anyio.create_task_group() as group:
        room = Room(group, lanes=[Lane("wide"), Lane("narrow", limit=0.2)])
        whole, lane = await room.ask(101), await room.ask(21, lane=1)
        assert room.states == ["too_large", "too_large"]
        assert isinstance(whole.error, TooLarge)
        assert isinstance(lane.error, TooLarge)
        assert "capacity=100 B" in whole.error.detail
        assert "lane 'narrow': limit=20 B" in lane.error.detail
        assert (lane.error.needed, lane.error.capacity) == (21, 20)
        await room.close()


async def test_when_the_line_is_full_the_next_one_is_refused_at_once() -> None:
    async with anyio.create_task_group() as group:
        room = Room(group, max_waiting=2)
        for _ in range(5):
            await room.ask(100)
        assert room.states == ["held", "waiting", "waiting", "queue_full", "queue_full"]
        assert "max_waiting=2" in str(room.askers[-1].error)
        with pytest.raises(QueueFull):
            room.admission.entrance.check_open()
        await room.close()


async def test_where_nobody_may_wait_the_refusal_says_so() -> None:
    async with anyio.create_task_group() as group:
        room = Room(group, max_waiting=0)
        await room.ask(60)
        refused = await room.ask(60)
        await room.ask(40)
        assert room.states == ["held", "queue_full", "held"]
        assert "max_waiting=0" in str(refused.error)
        room.admission.entrance.check_open()
        await room.close()


async def test_a_lane_has_a_timeout_and_a_bound_of_its_own() -> None:
    lanes = [Lane("batch", timeout=600.0, max_waiting=2), Lane("now", timeout=1.0, max_waiting=0)]
    async with anyio.create_task_group() as group:
        room = Room(group, lanes=lanes, timeout=30.0, max_waiting=50)
        await room.ask(100)
        for _ in range(3):
            await room.ask(10, lane=0)
        now = await room.ask(10, lane=1)
        assert room.states == ["held", "waiting", "waiting", "queue_full", "queue_full"]
        assert "in lane 'batch'" in str(room.askers[3].error)
        assert "max_waiting=0" in str(now.error)
        room.admission.entrance.check_open()
        await room.pass_time(599.0)
        assert room.states[1:3] == ["waiting"] * 2
        await room.pass_time(2.0)
        assert room.states[1:3] == ["queue_timeout"] * 2
        assert "lane 'batch': timeout=600 s" in str(room.askers[1].error)
        await room.close()


async def test_a_flow_has_a_bound_of_its_own_in_line() -> None:
    async with anyio.create_task_group() as group:
        room = Room(group, max_waiting=10, flow=lambda info: "unused")
        await room.ask(100)
        for _ in range(6):
            await room.ask(100, flow="busy")
        calm = await room.ask(100, flow="calm")
        assert room.states[1:] == ["waiting"] * 5 + ["queue_full", "waiting"]
        assert "max_waiting_per_flow=5" in str(room.askers[6].error)
        assert "busy" not in str(room.askers[6].error)
        assert calm.state == "waiting"
        await room.close()


async def test_no_more_run_at_once_than_allowed() -> None:
    async with anyio.create_task_group() as group:
        room = Room(group, max_running=1)
        first = await room.ask(1)
        await room.ask(1)
        assert room.states == ["held", "waiting"]
        await room.end(first)
        assert room.states == ["ended", "held"]
        await room.close()


async def test_a_flow_that_is_no_key_is_refused_before_anything_is_held() -> None:
    admission = Admission(capacity=100, estimator=1)
    keys: list[Any] = [[], {}, ("a", [])]
    for flow in keys:
        with pytest.raises(TypeError):
            await admission.lease(10, flow=flow).__aenter__()
    assert admission.snapshot().in_use == 0


@pytest.mark.parametrize("timeout", ["1", True, -1, float("nan")])
async def test_a_timeout_that_is_none_is_refused_with_its_name(timeout: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="timeout"):
        Admission(capacity=100, estimator=1).lease(10, timeout=timeout)


async def test_a_size_that_is_none_is_refused_with_its_name() -> None:
    admission = Admission(capacity=100, estimator=1)
    for size, error in ((0, ValueError), (-1, ValueError), ("much", ValueError), (1.5, TypeError)):
        with pytest.raises(error, match="size"):
            admission.lease(size)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no lane 'missing'; lanes are default"):
        admission.lease(1, lane="missing")


async def test_a_request_too_late_by_the_forecast_is_refused_as_it_comes() -> None:
    async with anyio.create_task_group() as group:
        room = Room(group, refuse_early=True, timeout=10.0, max_waiting=50)
        ledger = room.admission.locked.ledger
        ledger.drain._bytes, ledger.drain._busy = 10.0, 10.0
        await room.ask(100)
        soon = await room.ask(5, timeout=10.0)
        late = await room.ask(50, timeout=10.0)
        sooner = await room.ask(5, deadline=0.5)
        assert (soon.state, late.state, sooner.state) == ("waiting", "queue_timeout", "deadline")
        assert "refuse_early=True" in str(late.error)
        assert room.admission.waiting == 1
        await room.close()


async def test_nothing_is_refused_early_while_nothing_is_known() -> None:
    async with anyio.create_task_group() as group:
        room = Room(group, refuse_early=True, timeout=1.0)
        await room.ask(100)
        waiter = await room.ask(100)
        assert waiter.state == "waiting"
        await room.close()


def test_bl_34_a_delay_is_whole_seconds_from_1_to_60() -> None:
    nan, inf = float("nan"), float("inf")
    for forecast in (0.2, 0.0, None, -5.0, inf, 864_000.0, nan, 59.9, 1e-300):
        for otherwise in (0.25, 0.0, inf, nan, -1.0, 15.0):
            for _ in range(20):
                delay = retry_after(forecast, otherwise)
                assert type(delay) is int
                assert 1 <= delay <= 60
    assert min(retry_after(10.0, 0.0) for _ in range(200)) >= 10


def test_bl_35_those_who_are_refused_together_come_back_apart() -> None:
    for forecast in (0.1, 5.0, 30.0):
        assert len({retry_after(forecast, 15.0) for _ in range(200)}) >= 3


async def test_every_refusal_is_complete_when_it_is_told() -> None:
    async with anyio.create_task_group() as group:
        room = Room(group, max_waiting=1, timeout=5.0)
        holder = await room.ask(100)
        waiter = await room.ask(10)
        for size, reason, needed in ((10, "queue_full", 10), (101, "too_large", 101)):
            with pytest.raises(Rejected) as refused:
                async with room.admission.lease(size):
                    pass
            error = refused.value
            assert (error.reason, error.needed, error.waiting) == (reason, needed, 1)
            assert error.capacity == 100
            assert error.headers is not None
            assert error.headers["X-GPU-Admission-Reason"] == reason
            assert (error.retry_after is None) == (reason == "too_large")
            assert repr(error).startswith(f"{type(error).__name__}({reason!r}, ")
        assert room.admission.events.counts == {"admitted": 1, "queue_full": 1, "too_large": 1}
        assert (holder.state, waiter.state) == ("held", "waiting")
        await room.close()


# changing the whole


async def test_more_capacity_lets_those_start_who_fit_now() -> None:
    async with anyio.create_task_group() as group:
        room = Room(group)
        await room.ask(80)
        await room.ask(80)
        await room.ask(30)
        room.admission.resize("160B")
        await room.clock.turn()
        assert room.states == ["held", "held", "waiting"]
        room.admission.resize(200)
        await room.clock.turn()
        assert room.states == ["held", "held", "held"]
        await room.close()


async def test_less_capacity_refuses_at_once_who_can_never_fit_and_takes_nothing_back() -> None:
    async with anyio.create_task_group() as group:
        room = Room(group, timeout=1e6)
        first = await room.ask(90)
        never, later = await room.ask(70), await room.ask(40)
        room.admission.resize(50)
        await room.clock.turn()
        assert room.states == ["held", "too_large", "waiting"]
        assert isinstance(never.error, TooLarge)
        snapshot = room.admission.snapshot()
        assert (snapshot.capacity, snapshot.in_use, snapshot.available) == (50, 90, 0)
        await room.end(first)
        assert later.state == "held"
        await room.close()


async def test_a_capacity_of_nothing_is_refused_with_advice() -> None:
    admission = Admission(capacity=100, estimator=1)
    with pytest.raises(ValueError, match=r"drain\(\)"):
        admission.resize(0)
    with pytest.raises(ValueError, match="capacity"):
        admission.resize("much")
    assert admission.snapshot().capacity == 100


async def test_resizing_and_draining_may_be_done_in_a_thread() -> None:
    async with anyio.create_task_group() as group:
        room = Room(group)
        await room.ask(100)
        waiter, other = await room.ask(100), await room.ask(100)
        await anyio.to_thread.run_sync(room.admission.resize, 200)
        await settle()
        assert waiter.state == "held"
        await anyio.to_thread.run_sync(room.admission.drain)
        await settle()
        assert other.state == "draining"
        await room.close()


async def test_draining_refuses_those_who_wait_and_who_come_and_lets_the_others_finish() -> None:
    async with anyio.create_task_group() as group:
        room = Room(group)
        running, waiting = await room.ask(100), await room.ask(10)
        room.admission.drain()
        await room.clock.turn()
        late = await room.ask(1)
        assert (running.state, waiting.state, late.state) == ("held", "draining", "draining")
        assert isinstance(late.error, Unavailable)
        with pytest.raises(Unavailable, match="shutting down"):
            room.admission.entrance.check_open()
        snapshot = room.admission.snapshot()
        assert (snapshot.draining, snapshot.closed_by) == (True, "drain")
        await room.admission.aclose()
        await room.close()


async def test_a_process_that_takes_its_leave_serves_what_waits_and_what_comes() -> None:
    async with anyio.create_task_group() as group:
        room = Room(group)
        running, waiting = await room.ask(100), await room.ask(60)
        room.admission.drain("serve")
        late = await room.ask(40)
        snapshot = room.admission.snapshot()
        assert (snapshot.draining, snapshot.closed_by, snapshot.waiting) == (True, None, 2)
        running.end()
        await room.clock.turn()
        assert (waiting.state, late.state) == ("held", "held")
        room.admission.drain()
        assert (await room.ask(1)).state == "draining"
        with pytest.raises(ValueError, match="waiting"):
            room.admission.drain("keep")  # type: ignore[arg-type]
        await room.close()


async def test_draining_in_a_signal_handler_waits_until_the_ledger_is_whole() -> None:
    """A handler may run between any two lines of the very change that it would disturb."""
    async with anyio.create_task_group() as group:
        room = Room(group)
        await room.ask(100)
        waiter = await room.ask(50)
        with room.admission.locked:
            before = signal.signal(signal.SIGUSR1, lambda *_: room.admission.drain())
            signal.raise_signal(signal.SIGUSR1)
            signal.signal(signal.SIGUSR1, before)
            assert room.admission.snapshot().waiting == 1
        await room.clock.turn()
        assert waiter.state == "draining"
        await room.close()


async def test_margin_and_overcommit_are_factors_on_the_capacity() -> None:
    assert Admission(capacity=1000, estimator=1).snapshot().capacity == 1000
    assert Admission(capacity=1000, estimator=1, margin=0.1).snapshot().capacity == 900
    assert Admission(capacity=1000, estimator=1, overcommit=1.5).snapshot().capacity == 1500
    admission = Admission(capacity=1000, estimator=1, overcommit=1.5, margin=0.2)
    assert admission.snapshot().capacity == 1200
    admission.resize(500)
    assert admission.snapshot().capacity == 600
    assert admission.largest == 600


async def test_a_request_is_placed_on_one_device_and_told_which() -> None:
    cards = [FixedDevice(100, name="a"), FixedDevice(100, name="b")]
    async with anyio.create_task_group() as group:
        room = Room(group, devices=cards, capacity=100, placement="round_robin")
        for _ in range(3):
            await room.ask(60)
        assert [a.lease.device for a in room.askers if a.lease is not None] == ["a", "b"]
        assert (await room.ask(101)).state == "too_large"
        snapshot = room.admission.snapshot()
        assert (snapshot.capacity, snapshot.in_use) == (200, 120)
        assert [(device.name, device.in_use) for device in snapshot.devices] == [("a", 60), ("b", 60)]
        await room.close()


# modes


async def test_shadow_decides_and_records_and_neither_refuses_nor_delays() -> None:
    async with anyio.create_task_group() as group:
        room = Room(group, mode="shadow", max_waiting=1, timeout=0)
        for size in (60, 60, 101):
            await room.ask(size)
        assert room.states == ["held"] * 3
        snapshot = room.admission.snapshot()
        assert (snapshot.in_use, snapshot.waiting) == (221, 0)
        assert snapshot.counts == {"admitted": 3, "shadow_queue_timeout": 1, "shadow_too_large": 1}
        assert [event.reason for event in room.events if event.kind == "shadow"] == [
            "",
            "queue_timeout",
            "too_large",
        ]
        room.admission.drain()
        await room.ask(1)
        assert room.states[-1] == "held"
        await room.close()


async def test_shadow_says_who_would_only_have_waited() -> None:
    async with anyio.create_task_group() as group:
        room = Room(group, mode="shadow", timeout=30.0)
        await room.ask(60)
        await room.ask(60)
        assert room.admission.events.counts["shadow_waited"] == 1
        await room.close()


async def test_switched_off_it_counts_and_tells_nothing() -> None:
    async with anyio.create_task_group() as group:
        room = Room(group, mode="off")
        await room.ask(1000)
        room.admission.drain()
        await room.ask(1000)
        room.admission.entrance.check_open()
        assert room.states == ["held", "held"]
        assert room.admission.snapshot().in_use == 0
        await room.close()
        assert room.events == []
        assert not room.admission.events.counts


# what is told


async def test_observers_hear_of_each_lease_from_its_beginning_to_its_end() -> None:
    async with anyio.create_task_group() as group:
        room = Room(group, lanes=[Lane("a"), Lane("b")], max_waiting=0)
        asker = await room.ask(60, lane=1, route="/v1/{model}")
        assert asker.lease is not None
        asker.lease.record_peak(33)
        asker.lease.resize(50)
        await room.end(asker)
        with pytest.raises(Rejected):
            async with room.admission.lease(101):
                pass
        room.admission.entrance.left(lane=1, route="/x")
        started, admitted, resized, released, refused, left = room.events
        assert (started.kind, started.bytes) == ("started", 100)
        assert (admitted.kind, admitted.bytes, admitted.lane) == ("admitted", 60, "b")
        assert (resized.kind, resized.bytes) == ("resized", 50)
        assert (released.kind, released.bytes, released.peak) == ("released", 50, 33)
        assert released.route == admitted.route == "/v1/{model}"
        assert released.lease == admitted.lease == asker.lease.number
        assert released.held >= 0
        assert (released.outcome, released.device) == ("ok", "device")
        assert (refused.kind, refused.reason, refused.status) == ("refused", "too_large", 413)
        assert (left.kind, left.lane, left.route) == ("disconnected", "b", "/x")
        await room.close()


async def test_an_observer_that_fails_breaks_no_request(caplog: pytest.LogCaptureFixture) -> None:
    def broken(event: Event) -> None:
        raise ZeroDivisionError(event.kind)

    async with anyio.create_task_group() as group:
        room = Room(group)
        room.admission.observe(broken)
        room.admission.observe(room.events.append)
        asker = await room.ask(60)
        await room.end(asker)
        with pytest.raises(TooLarge):
            await room.admission.lease(101).__aenter__()
        assert Counter(room.kinds()) == {"started": 2, "admitted": 2, "released": 2, "refused": 2}
        assert caplog.text.count("failed with ZeroDivisionError") == 4
        await room.close()


async def test_a_snapshot_is_one_instant_as_plain_json() -> None:
    lanes = [Lane("a", guaranteed=0.2), Lane("b", limit=0.5)]
    async with anyio.create_task_group() as group:
        room = Room(group, lanes=lanes)
        await room.ask(60)
        await room.ask(60)
        await room.ask(30, lane=1)
        plain = json.loads(json.dumps(room.admission.snapshot().to_dict(), allow_nan=False))
        assert (plain["capacity"], plain["in_use"], plain["available"]) == (100, 60, 40)
        assert (plain["running"], plain["waiting"], plain["waiting_bytes"]) == (1, 2, 90)
        assert plain["lanes"] == [
            {
                "name": "a",
                "in_use": 60,
                "waiting": 1,
                "waiting_bytes": 60,
                "guaranteed": 20,
                "limit": 100,
            },
            {
                "name": "b",
                "in_use": 0,
                "waiting": 1,
                "waiting_bytes": 30,
                "guaranteed": 0,
                "limit": 50,
            },
        ]
        assert plain["devices"][0]["in_use"] == 60
        assert plain["counts"] == {"admitted": 1}
        assert (plain["mode"], plain["peak"], plain["ceiling"]) == ("enforce", 60, 100)
        assert plain["closed_by"] is None
        await room.close()


async def test_an_admission_says_what_it_is() -> None:
    async with anyio.create_task_group() as group:
        room = Room(group, name="card", capacity="2KiB")
        await room.ask(1024)
        await room.ask(2048)
        assert repr(room.admission) == (
            "<Admission 'card' 1.00 KiB of 2.00 KiB in use by 1, 1 waiting, mode=enforce>"
        )
        assert room.admission.in_use == 1024
        assert room.admission.waiting == 1
        await room.close()


async def test_the_queue_can_be_asked_for() -> None:
    async with anyio.create_task_group() as group:
        room = Room(group, lanes=[Lane("low"), Lane("high", priority=1)])
        await room.ask(100)
        await room.ask(10)
        await room.ask(20, lane=1)
        assert [(w.lane, w.bytes) for w in room.admission.queue()] == [("high", 20), ("low", 10)]
        assert len(room.admission.queue(1)) == 1
        await room.close()


# nesting, generators


async def test_a_request_that_holds_a_lease_reuses_it_at_every_door() -> None:
    admission = Admission(capacity=100, estimator=100, timeout=0)
    assert admission.entrance.held() is None
    async with admission.lease(100) as lease:
        assert admission.entrance.held() is lease
        async with admission.lease(100) as again:
            assert again is lease
    assert admission.snapshot().in_use == 0


async def test_a_generator_that_holds_a_lease_and_is_collected_while_the_ledger_changes() -> None:
    """The collector runs in the middle of any line; the bytes come back when the change is done."""
    async with anyio.create_task_group() as group:
        room = Room(group)
        lease = await room.admission.entrance.acquire(Estimate(100))
        waiter = await room.ask(100)
        with room.admission.locked:
            lease.release()
            assert room.admission.snapshot().in_use == 100
        await room.clock.turn()
        assert waiter.state == "held"
        assert lease.ended
        await room.close()


async def test_a_stream_that_is_left_half_read_gives_its_bytes_back() -> None:
    admission = Admission(capacity=100, estimator=1)

    async def stream() -> AsyncGenerator[int, None]:
        async with admission.lease(60):
            yield 1
            yield 2

    chunks = stream()
    await anext(chunks)
    assert admission.snapshot().in_use == 60
    await chunks.aclose()
    gc.collect()
    assert admission.snapshot().in_use == 0


async def test_the_first_request_says_the_settings_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="gpu_admission"):
        admission = Admission(capacity=100, estimator=1)
        await admission.startup.begin()
        for _ in range(3):
            async with admission.lease(1):
                pass
    assert len(caplog.records) == 1
