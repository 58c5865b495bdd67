"""A clock that moves when told, for deadlines that must fall on one instant. Nothing waits for it."""

from __future__ import annotations

import asyncio

import anyio.lowlevel
import trio.testing


class Clock:
    """Moves the running event loop's time. Use it with ``MockClock()`` on trio."""

    def __init__(self) -> None:
        self._loop = asyncio._get_running_loop()
        if self._loop is not None:
            self._now = self._loop.time()
            self._loop.time = self._read  # type: ignore[method-assign]

    def _read(self) -> float:
        return self._now

    def jump(self, seconds: float) -> None:
        """Time passes; what is due happens once the loop turns."""
        if self._loop is not None:
            self._now += seconds
        else:
            clock = trio.lowlevel.current_clock()
            assert isinstance(clock, trio.testing.MockClock)
            clock.jump(seconds)

    async def turn(self, times: int = 8) -> None:
        """Let the loop turn, so that what was started has come to where it waits."""
        for _ in range(times):
            await anyio.lowlevel.checkpoint()
