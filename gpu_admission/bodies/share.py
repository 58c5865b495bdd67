"""How many bytes of request bodies one step of an event loop reads itself.

Owns the limit for small bodies, which are read at once and without a thread: a hundred of them in one
step would hold up everything else a hundred times as long as one. Large bodies are read in ``large``.
"""

from __future__ import annotations

import asyncio

import anyio.lowlevel

STEP_BYTES = 32 * 1024
"""Bytes read in one step: as many as a single body may have that is read without a thread."""
UNCOUNTED_BYTES = 512
"""Bodies up to this size are so cheap that counting them is not worth it."""


class StepShare:
    """The bytes that were read in this step of the loop, or since somebody last waited; ``limit`` at most."""

    __slots__ = ("_ends", "_limit", "_read", "_step")

    def __init__(self, limit: int = STEP_BYTES) -> None:
        self._limit = limit
        self._read = 0
        self._step = 0
        self._ends = False
        """The loop has been asked to say when its next step begins."""

    def has_room(self, size: int, loop: asyncio.AbstractEventLoop | None = None) -> bool:
        """Whether ``size`` bytes may be read now; if so they are counted.

        ``loop`` is the running asyncio loop. Without it, a share that is used up stays so until
        somebody waits in ``enter``.
        """
        read = self._read + size
        if read > self._limit and self._read:
            return False
        self._read = read
        if 2 * read > self._limit and loop is not None and not self._ends:
            # Asked of the loop, not of the next to come: else all that come in a step would wait for
            # another because of what was read long before.
            self._ends = True
            loop.call_soon(self._begin_step)
        return True

    async def enter(self, size: int) -> None:
        """Return in a step of the loop that has room for ``size`` bytes, which are counted."""
        while not self.has_room(size):
            step = self._step
            await anyio.lowlevel.checkpoint()
            if step == self._step:  # nobody else has seen this step begin
                self._begin_step()

    def _begin_step(self) -> None:
        self._step += 1
        self._read = 0
        self._ends = False
