"""Ten thousand items whose callers leave, whose handlers raise, in every order: nothing is left of them."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from gpu_admission import Admission, Rejected
from gpu_admission.serving import Batcher, BatchEvent
from tests.serving.test_batcher import turns

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
ITEMS = 10_000
WAVE = 100
CAPACITY = 2_000
MAX_BYTES = 1_000


class Storm:
    """Callers of one batcher: some hold a lease as a request does, some leave, some get an error."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.budget = Admission(capacity=CAPACITY, guards=(), estimator="1GiB", timeout=0.02, max_waiting=20)
        self.ends = {"ok": 0, "raised": 0, "refused": 0, "left": 0}
        self.shifted = 0
        """Errors that were another caller's."""
        self.events: list[BatchEvent] = []
        self.batcher: Batcher[tuple[int, int], int] = Batcher(
            self.handle,
            cost=lambda item: item[1],
            key=lambda item: item[1] % 2,
            max_bytes=MAX_BYTES,
            max_items=16,
            max_wait=0.001,
            max_running=2,
            max_waiting=80,
            admission=self.budget,
            observer=self.events.append,
        )

    async def handle(self, items: list[tuple[int, int]]) -> list[int | Exception]:
        assert len({price % 2 for _, price in items}) == 1
        assert len(items) * max(price for _, price in items) <= MAX_BYTES
        assert self.budget.in_use <= CAPACITY
        for _ in range(self.dice.randrange(4)):
            await anyio.lowlevel.checkpoint()
        fate = self.dice.random()
        if fate < 0.05:
            raise LookupError
        if fate < 0.1:
            raise MemoryError
        return [KeyError(number) if number % 50 == 0 else number for number, _ in items]

    async def caller(self, number: int) -> None:
        price, patience = self.dice.randrange(1, 400), self.dice.randrange(60)
        answered = False
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                if patience < 20:
                    tasks.start_soon(self.hang_up, scope, patience)
                await self.ask(number, price)
                answered = True
                tasks.cancel_scope.cancel()
        if scope.cancelled_caught and not answered:  # one may also hang up on its answer
            self.ends["left"] += 1

    async def hang_up(self, scope: anyio.CancelScope, patience: int) -> None:
        await turns(patience)
        scope.cancel()

    async def ask(self, number: int, price: int) -> None:
        try:
            if number % 3:
                result = await self.batcher((number, price))
            else:
                async with self.budget.lease(self.dice.randrange(1, price + 50)):
                    result = await self.batcher((number, price))
            assert result == number
            self.ends["ok"] += 1
        except Rejected:
            self.ends["refused"] += 1
        except (LookupError, MemoryError) as error:
            self.ends["raised"] += 1
            self.shifted += isinstance(error, KeyError) and error.args != (number,)

    async def run(self) -> None:
        for wave in range(ITEMS // WAVE):
            async with anyio.create_task_group() as tasks:
                for number in range(wave * WAVE, (wave + 1) * WAVE):
                    tasks.start_soon(self.caller, number)
                    if self.dice.random() < 0.3:
                        await anyio.lowlevel.checkpoint()


async def test_a_storm_of_callers_ends_at_zero() -> None:
    storm = Storm(seed=1)
    before = _tasks()
    with anyio.fail_after(300):
        await storm.run()
        await storm.batcher.aclose()
    assert sum(storm.ends.values()) == ITEMS
    assert min(storm.ends.values()) > 100, storm.ends
    assert not storm.shifted
    assert (storm.batcher.waiting, storm.batcher.running) == (0, 0)
    rest = storm.budget.snapshot()
    assert (rest.in_use, rest.waiting, rest.running) == (0, 0, 0)
    assert rest.peak <= CAPACITY
    assert max(event.bytes for event in storm.events) <= MAX_BYTES
    await turns()
    assert _tasks() <= before


def _tasks() -> set[Any]:
    return set(asyncio.all_tasks()) if asyncio._get_running_loop() is not None else set()
