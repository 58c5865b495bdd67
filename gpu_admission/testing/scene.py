"""Scenes: an app behind an admission, the calls to it, and what must hold at the end.

Nothing here sleeps: a scene moves on by events, and looks when all tasks are blocked. It runs on
asyncio and on trio.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import anyio.to_thread

from gpu_admission import Admission, GPUAdmission, current_lease
from gpu_admission.runtime.loop import running_loop
from gpu_admission.testing.calls import Call, answer, cost, read_body
from gpu_admission.types import ASGIApp, Event, Receive, Scope, Send

CAPACITY = 100
"""Capacity of a scene's admission, in bytes, unless its settings say otherwise."""


async def working(scope: Scope, receive: Receive, send: Send) -> None:
    """An app for scenes: it reads its body, works until ``call.finish()``, and answers."""
    call: Call = scope["call"]
    call.lease = current_lease()
    call.read = await read_body(receive)
    call.started.set()
    await call.may_finish.wait()
    await answer(send, b"done")


class Scene:
    """An app behind an admission of 100 bytes, and the calls to it; made by ``scenario``."""

    def __init__(self, app: ASGIApp, group: anyio.abc.TaskGroup, settings: dict[str, Any]) -> None:
        self.group = group
        self.calls: list[Call] = []
        self.events: list[Event] = []
        options: dict[str, Any] = {"capacity": CAPACITY, "estimator": cost, "timeout": 30.0, **settings}
        options["observers"] = [self.observe, *settings.get("observers", ())]
        self.admission = Admission(**options)
        self.app: ASGIApp = GPUAdmission(app, admission=self.admission)

    def observe(self, event: Event) -> None:
        self.events.append(event)
        self.check_step()

    def check_step(self) -> None:
        snapshot = self.admission.snapshot()
        assert snapshot.in_use >= 0
        if snapshot.mode == "enforce":
            assert snapshot.peak <= snapshot.capacity

    @property
    def in_use(self) -> int:
        return self.admission.snapshot().in_use

    @property
    def waiting(self) -> int:
        return self.admission.snapshot().waiting

    def call(self, *pieces: bytes, app: ASGIApp | None = None, **changes: Any) -> Call:
        """A call that has not started yet."""
        call = Call(app or self.app, *pieces, **changes)
        self.calls.append(call)
        return call

    async def start(self, *pieces: bytes, **changes: Any) -> Call:
        """Start a call; returns when it has come as far as it can by itself."""
        call = self.call(*pieces, **changes)
        self.group.start_soon(call.run)
        await settle()
        self.check_step()
        return call

    async def run(self, *pieces: bytes, **changes: Any) -> Call:
        """Make a call to its end, with work that takes no time."""
        call = self.call(*pieces, **changes)
        call.finish()
        await call.run()
        self.check_step()
        return call

    async def check_end(self) -> None:
        """Check what must hold at the end of every scenario."""
        with anyio.fail_after(10):
            for call in self.calls:
                await call.done.wait()
                call.check()
        self.check_rest()
        if not self.admission.snapshot().draining:
            await self._check_small_one()

    async def _check_small_one(self) -> None:
        """Check that a small request afterwards starts at once."""
        async with self.admission.lease(1, timeout=0) as lease:
            assert lease.waited == 0.0
        self.check_rest()

    def check_rest(self) -> None:
        rest = self.admission.snapshot()
        assert (rest.in_use, rest.running, rest.waiting, rest.waiting_bytes) == (0, 0, 0, 0)
        assert rest.buffered_bytes == 0
        assert sum(lane.in_use + lane.waiting for lane in rest.lanes) == 0


async def settle() -> None:
    """Wait until every task waits for something; by then a pending cancellation has arrived."""
    for _ in range(3):
        await anyio.wait_all_tasks_blocked()
        await anyio.lowlevel.checkpoint()


async def until(condition: Callable[[], bool]) -> None:
    """Wait until ``condition`` holds, for what worker threads do: tasks that wait for them look blocked."""
    with anyio.fail_after(10):
        while not condition():
            await anyio.to_thread.run_sync(_nothing)


def _nothing() -> None:
    """Let other threads run."""


@asynccontextmanager
async def scenario(app: ASGIApp = working, **settings: Any) -> AsyncIterator[Scene]:
    """``async with scenario(app, timeout=1) as scene:`` for an app behind an admission of these settings.

    At the end it checks that every client was answered once, that nothing is held and nothing waits,
    that a small request starts at once, and that no task is left over.
    """
    before = _tasks()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            scene = Scene(app, group, settings)
            yield scene
            await scene.check_end()
        await settle()
        assert _tasks() <= before


def _tasks() -> set[Any]:
    """All tasks of the loop; none for trio, where there is no task that nobody waits for."""
    return set(asyncio.all_tasks()) if isinstance(running_loop(), asyncio.AbstractEventLoop) else set()
