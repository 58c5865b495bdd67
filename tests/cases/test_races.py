"""Grants that meet cancellations, timeouts and newcomers at the same instant: BL-39, BL-40, BL-41, BL-47.

Time is moved by hand, so that what must be simultaneous is.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trio.testing

from gpu_admission import Admission, Lease, QueueTimeout, Rejected
from gpu_admission.types import Estimate
from tests.cases.clock import Clock

pytestmark = pytest.mark.anyio

some_or_many = pytest.mark.parametrize("rounds", [1_000, pytest.param(5_000, marks=pytest.mark.slow)])
"""On each of asyncio and trio."""


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    options = {"clock": trio.testing.MockClock()} if request.param == "trio" else {"use_uvloop": False}
    return request.param, options


class Waiter:
    """One task that asks for ``size`` bytes, and holds them until told."""

    def __init__(self, admission: Admission, group: anyio.abc.TaskGroup, size: int, **how: Any) -> None:
        self._admission = admission
        self._size = size
        self._how = how
        self._over = anyio.Event()
        self.scope = anyio.CancelScope()
        self.lease: Lease | None = None
        self.refused: Rejected | None = None
        self.ended = anyio.Event()
        self._task: asyncio.Task[Any] | None = None
        group.start_soon(self._run)

    async def _run(self) -> None:
        self._task = asyncio.current_task() if asyncio._get_running_loop() else None
        try:
            with self.scope:
                async with self._admission.lease(self._size, **self._how) as lease:
                    self.lease = lease
                    await self._over.wait()
        except Rejected as rejected:
            self.refused = rejected
        except asyncio.CancelledError:
            assert self._task is not None
            self._task.uncancel()
        finally:
            self.ended.set()

    def release(self) -> None:
        """Give the bytes back at once, before any other task runs."""
        if self.lease is not None:
            self.lease.release()
        self._over.set()

    def cancel(self) -> None:
        self.scope.cancel()

    def cancel_natively(self) -> None:
        """As ``asyncio.wait_for`` and servers do; on trio there is one way only."""
        if self._task is None:
            self.scope.cancel()
        elif not self.ended.is_set():
            self._task.cancel()

    @property
    def holds(self) -> bool:
        return self.lease is not None and not self.lease.ended


class Bench:
    """An admission of 100 bytes, with waiters."""

    def __init__(self, group: anyio.abc.TaskGroup, **settings: Any) -> None:
        self.admission = Admission(capacity=100, estimator=1, **settings)
        self.group = group
        self.clock = Clock()
        self.waiters: list[Waiter] = []

    async def waiter(self, size: int, **how: Any) -> Waiter:
        waiter = Waiter(self.admission, self.group, size, **how)
        self.waiters.append(waiter)
        await self.clock.turn()
        return waiter

    @property
    def in_use(self) -> int:
        snapshot = self.admission.snapshot()
        assert 0 <= snapshot.in_use <= snapshot.peak <= 100
        return snapshot.in_use

    async def end(self) -> None:
        """Everybody lets go; nothing may be left."""
        await self.clock.turn()
        for waiter in self.waiters:
            waiter.release()
            waiter.cancel()
        for waiter in self.waiters:
            await waiter.ended.wait()
        self.waiters.clear()
        rest = self.admission.snapshot()
        assert (rest.in_use, rest.running, rest.waiting, rest.waiting_bytes) == (0, 0, 0, 0)
        async with self.admission.lease(100, timeout=0) as lease:
            assert lease.waited == 0.0


# BL-39: cancelled when it is woken


@pytest.mark.parametrize("order", ["granted, then cancelled", "cancelled, then granted"])
async def test_bl_39_the_grant_of_a_cancelled_waiter_goes_to_the_next(order: str) -> None:
    async with anyio.create_task_group() as group:
        bench = Bench(group)
        holder, b, c = [await bench.waiter(100) for _ in range(3)]
        steps: list[Callable[[], None]] = [holder.release, b.cancel]
        for step in steps if order.startswith("granted") else reversed(steps):
            step()
        await bench.clock.turn()
        assert not b.holds
        assert c.holds
        assert bench.in_use == 100
        await bench.end()


@some_or_many
async def test_bl_39_random_interleavings_lose_nothing_and_double_nothing(rounds: int) -> None:
    dice = random.Random(39)
    async with anyio.create_task_group() as group:
        bench = Bench(group)
        for _ in range(rounds):
            waiters = [Waiter(bench.admission, group, dice.choice((30, 60, 100))) for _ in range(4)]
            bench.waiters = waiters
            for _ in range(dice.randrange(4)):
                await anyio.lowlevel.checkpoint()
            steps: list[Callable[[], None]] = []
            for waiter in waiters[:-1]:
                cancel = dice.choice((waiter.cancel, waiter.cancel_natively))
                steps += dice.sample([waiter.release, cancel], dice.choice((1, 2)))
            dice.shuffle(steps)
            for step in steps:
                step()
                assert bench.in_use <= 100
                for _ in range(dice.randrange(3)):
                    await anyio.lowlevel.checkpoint()
            for waiter in waiters[:-1]:
                waiter.release()
            await bench.clock.turn(12)
            assert waiters[-1].holds, "the one that nobody cancelled must have been granted"
            await bench.end()


# BL-40: a big one at the head gives up


@pytest.mark.parametrize("way", ["timeout", "cancelled"])
async def test_bl_40_when_the_head_gives_up_those_behind_it_start_at_once(way: str) -> None:
    async with anyio.create_task_group() as group:
        bench = Bench(group, max_bypass=0)
        await bench.waiter(60)
        b = await bench.waiter(80, timeout=0.3)
        c = await bench.waiter(30)
        assert not c.holds
        if way == "timeout":
            bench.clock.jump(0.3)
            await bench.clock.turn()
            assert isinstance(b.refused, QueueTimeout)
        else:
            b.cancel()
            await bench.clock.turn()
        assert c.holds
        assert bench.in_use == 90
        await bench.end()


async def test_bl_40_when_the_client_of_the_head_leaves_those_behind_it_start_at_once() -> None:
    async with anyio.create_task_group() as group:
        bench = Bench(group, max_bypass=0)
        await bench.waiter(60)
        left = anyio.Event()
        outcome: list[BaseException] = []

        async def client() -> None:
            try:
                await bench.admission.entrance.acquire(Estimate(80), gone=left.wait)
            except Exception as error:
                outcome.append(error)

        group.start_soon(client)
        await bench.clock.turn()
        c = await bench.waiter(30)
        assert not c.holds
        left.set()
        await bench.clock.turn()
        assert [type(error).__name__ for error in outcome] == ["ClientLeft"]
        assert c.holds
        await bench.end()


# BL-41: bytes that are promised already


@pytest.mark.parametrize("timeout", [0, 1.0])
async def test_bl_41_a_newcomer_does_not_take_what_a_woken_waiter_was_given(timeout: float) -> None:
    async with anyio.create_task_group() as group:
        bench = Bench(group)
        holder, b = [await bench.waiter(100) for _ in range(2)]
        holder.release()
        newcomer = Waiter(bench.admission, group, 100, timeout=timeout)
        bench.waiters.append(newcomer)
        await bench.clock.turn()
        assert b.holds
        assert not newcomer.holds
        assert (newcomer.refused is not None) == (timeout == 0)
        assert bench.in_use == 100
        await bench.end()


# BL-47: timeout and grant in the same instant


@some_or_many
async def test_bl_47_released_exactly_at_the_timeout_is_admitted_or_refused_and_never_leaked(
    rounds: int,
) -> None:
    dice = random.Random(47)
    async with anyio.create_task_group() as group:
        bench = Bench(group, timeout=0.1)
        outcomes = {True: 0, False: 0}
        for _ in range(rounds):
            holder = Waiter(bench.admission, group, 100)
            b = Waiter(bench.admission, group, 100)
            bench.waiters = [holder, b]
            await bench.clock.turn(3)
            off = dice.choice((0.0, 0.0, 0.0, dice.uniform(-0.001, 0.001)))
            steps: list[Callable[[], None]] = [partial(bench.clock.jump, 0.1 + off), holder.release]
            dice.shuffle(steps)
            for step in steps:
                step()
                for _ in range(dice.randrange(8)):
                    await anyio.lowlevel.checkpoint()
            await bench.clock.turn()
            if not b.holds and b.refused is None:
                bench.clock.jump(1)
                await bench.clock.turn()
            assert b.holds != isinstance(b.refused, QueueTimeout)
            outcomes[b.holds] += 1
            assert bench.in_use == (100 if b.holds else 0)
            await bench.end()
    assert all(outcomes.values()), outcomes


async def test_bl_47_a_loop_blocked_across_the_deadline_leaks_nothing() -> None:
    async with anyio.create_task_group() as group:
        bench = Bench(group, timeout=0.1)
        for late in (0.1, 5.0):
            holder, b, c = [await bench.waiter(100) for _ in range(3)]
            bench.clock.jump(late)  # nobody could run meanwhile
            holder.release()
            await bench.clock.turn(16)
            assert b.holds or b.refused is not None
            assert c.holds or c.refused is not None or b.holds
            await bench.end()
