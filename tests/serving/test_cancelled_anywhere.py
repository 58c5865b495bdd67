"""Each helper, cancelled at each of its awaits: nothing is held afterwards, and it works on."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from gpu_admission import Admission
from gpu_admission.serving import Batcher, Instances, job, offload
from tests.serving.test_batcher import turns
from tests.waiting import until_async

pytestmark = pytest.mark.anyio
STEPS = 14
"""Turns of the loop after which the work is cancelled; it takes fewer."""


async def cancelled_after(steps: int, work: Callable[[], Awaitable[Any]]) -> None:
    """Run ``work``, and cancel it after so many turns, if it has not ended."""
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:

            async def run() -> None:
                await work()
                group.cancel_scope.cancel()

            group.start_soon(run)
            await turns(steps)
            group.cancel_scope.cancel()


def budget() -> Admission:
    return Admission(capacity=100, estimator=1, timeout=10, guards=())


@pytest.mark.parametrize("steps", range(STEPS))
@pytest.mark.parametrize("is_plain", [True, False])
async def test_a_caller_of_a_batcher_leaves_nothing_behind(steps: int, is_plain: bool) -> None:
    admission = budget()

    async def on_loop(items: list[int]) -> list[int]:
        await turns(3)
        return items

    handler: Any = (lambda items: items) if is_plain else on_loop
    batcher: Batcher[int, int] = Batcher(handler, cost=10, admission=admission)

    async def work() -> None:
        async with admission.lease(20):
            await batcher(1)
            await batcher(2)

    await cancelled_after(steps, work)
    await until_async(lambda: (admission.in_use, batcher.waiting, batcher.running) == (0, 0, 0))
    assert await batcher(3) == 3
    await cancelled_after(steps, batcher.aclose)
    await batcher.aclose()
    assert admission.in_use == 0


@pytest.mark.parametrize("steps", range(STEPS))
async def test_a_borrower_of_instances_leaves_nothing_behind(steps: int) -> None:
    models = Instances(object, 1, timeout=20)
    admission = budget()

    async def work() -> None:
        async with admission.lease(10), models.borrow():
            await models.run(lambda model: threading.get_ident())
            await turns(2)

    async with anyio.create_task_group() as group:
        group.start_soon(cancelled_after, steps, work)
        group.start_soon(cancelled_after, steps + 3, work)
    await until_async(lambda: (models.ready, models.waiting, admission.in_use) == (1, 0, 0))
    await cancelled_after(steps, models.start)
    assert await models.run(lambda model: 7) == 7
    await cancelled_after(steps, models.aclose)
    await models.aclose()
    assert (models.ready, models.waiting) == (0, 0)


@pytest.mark.parametrize("steps", range(STEPS))
async def test_a_job_that_is_stopped_says_so_and_holds_nothing(steps: int) -> None:
    admission = budget()
    first, second = job(admission, 60), job(admission, 60)

    async def work(one: Any) -> None:
        async with one:
            await turns(4)

    async with anyio.create_task_group() as group:
        group.start_soon(cancelled_after, steps, lambda: work(first))
        group.start_soon(cancelled_after, steps + 2, lambda: work(second))
    assert {first.state, second.state} <= {"done", "stopped", "waiting"}
    assert (admission.in_use, admission.waiting) == (0, 0)


@pytest.mark.parametrize("steps", range(4))
async def test_offloaded_work_holds_its_bytes_until_its_thread_is_through(steps: int) -> None:
    admission, go_on, held = budget(), threading.Event(), list[int]()

    def work() -> None:
        go_on.wait(20)
        held.append(admission.in_use)

    async def request() -> None:
        async with admission.lease(30):
            await offload(work)

    async with anyio.create_task_group() as group:
        group.start_soon(cancelled_after, steps, request)
        await turns(steps + 4)
        go_on.set()
    await until_async(lambda: not admission.in_use)
    assert set(held) <= {30}
