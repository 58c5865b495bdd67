"""How many bytes of request bodies one step of an event loop reads itself.

Owns the limit for small bodies, which are read at once and without a thread: a hundred of them in one
step would hold up everything else a hundred times as long as one. Large bodies are read in ``large``.
"""

from __future__ import annotations

import anyio.lowlevel

STEP_BYTES = 32 * 1024
"""Bytes read in one step: as many as a single body may have that is read without a thread."""
UNCOUNTED_BYTES = 512
"""Bodies up to this size are so cheap that counting them is not worth it."""


class StepShare:
    """The bytes that were read since somebody last waited for the loop's next step, of ``limit`` at most."""

    __slots__ = ("_limit", "_read", "_step")

    def __init__(self, limit: int = STEP_BYTES) -> None:
        self._limit = limit
        self._read = 0
        self._step = 0

    def has_room(self, size: int) -> bool:
        """Whether ``size`` bytes may be read now; if so they are counted."""
        if self._read and self._read + size > self._limit:
            return False
        self._read += size
        return True

    async def enter(self, size: int) -> None:
        """Return in a step of the loop that has room for ``size`` bytes, which are counted."""
        while not self.has_room(size):
            step = self._step
            await anyio.lowlevel.checkpoint()
            if step == self._step:  # nobody else has seen this step begin
                self._step += 1
                self._read = 0
