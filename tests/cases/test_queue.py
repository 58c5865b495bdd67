"""The queue: who starts, who waits, who leaves, and that nothing is lost on the way: BL-39 to BL-50."""

from __future__ import annotations

import anyio
import pytest

from tests.cases.harness import scenario, settle

pytestmark = pytest.mark.anyio


# BL-39: grants that must arrive


async def test_bl_39_a_waiter_that_a_newcomer_lets_start_is_woken() -> None:
    """Who may pass a large head depends on what is asked lately, so an arrival can let others start."""
    async with scenario(max_waiting=1000, max_bypass=1000) as scene:
        for _ in range(60):
            await scene.run(cost=5)
        holder = await scene.start(cost=60)
        head = await scene.start(cost=90)
        earlier = await scene.start(cost=35)
        assert not earlier.reached_app
        newcomers = [scene.call(cost=50) for _ in range(80)]
        for call in newcomers:
            scene.group.start_soon(call.run)
        await settle()
        assert scene.in_use == 95
        assert earlier.started.is_set()
        for call in (holder, head, earlier, *newcomers):
            call.finish()
        with anyio.fail_after(10):
            await head.done.wait()
