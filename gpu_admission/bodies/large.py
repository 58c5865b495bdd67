"""Large bodies are read in worker threads of their own, a few at a time, the smallest first.

Owns what counts as large, and the line of bodies that wait to be read: each takes several times its
size in host memory while it is read. Which requests wait for a lease is up to the ledger.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

from gpu_admission.bodies.pace import Pace
from gpu_admission.errors import ClientLeft
from gpu_admission.request import FullDialect

T = TypeVar("T")
Gone = Callable[[], Awaitable[None]]

AT_ONCE = 3
LARGEST_AT_ONCE = 2
"""How many bodies above ``MEDIUM_BYTES`` are read at once: one reader is left for smaller ones."""
SMALL_BYTES = 16 * 1024
"""Up to this size no body is large, and the dialect is not asked."""
LARGE_BYTES = 32 * 1024
"""Above this a body is read in a thread, where its dialect names no size of its own."""
MEDIUM_BYTES = 2 * 2**20


class LineTimeout(Exception):
    """The turn of a body did not come in time."""


def is_large(size: int, dialect: FullDialect) -> bool:
    """Whether reading a body of ``size`` bytes would hold up the event loop."""
    return size > SMALL_BYTES and size > dialect.offload_bytes


async def read_aside(
    read: Callable[[], T], *, size: int = LARGE_BYTES, seconds: float = math.inf, gone: Gone | None = None
) -> T:
    """``read()`` in a worker thread, once its turn has come. ``size``: bytes of what is read.

    Raises ``LineTimeout`` if its turn does not come within ``seconds``, ``ClientLeft`` if ``gone``
    returns before. A reading that has begun is waited for.
    """
    readers = _readers.get(None)
    if readers is None:
        readers = Readers()
        _readers.set(readers)
    await readers.enter(size, seconds, gone)
    try:
        return await anyio.to_thread.run_sync(partial(readers.pace.run, read, size), limiter=readers.threads)
    finally:
        readers.leave(size)


class _Waiter:
    __slots__ = ("has_turn", "left", "scope", "size", "waits")

    def __init__(self, size: int, seconds: float) -> None:
        self.size = size
        self.scope = anyio.CancelScope(deadline=anyio.current_time() + seconds)
        self.waits = True
        self.has_turn = False
        self.left = False


class Readers:
    """The readers of one event loop, and the line before them."""

    def __init__(self) -> None:
        self.threads = anyio.CapacityLimiter(AT_ONCE)
        self.pace = Pace()
        self._reading = 0
        self._reading_largest = 0
        self._line: list[tuple[int, int, _Waiter]] = []
        self._arrivals = itertools.count()

    async def enter(self, size: int, seconds: float, gone: Gone | None) -> None:
        """Return when it is the turn of a body of ``size`` bytes; otherwise leave the line and raise."""
        if self._is_free_for(size):
            self._begin(size)
            return
        waiter = _Waiter(size, seconds)
        heapq.heappush(self._line, (size, next(self._arrivals), waiter))
        try:
            with waiter.scope:
                await (anyio.sleep_forever() if gone is None else gone())
                waiter.left = True
        except BaseException:
            self._give_up(waiter)
            raise
        if waiter.has_turn and not waiter.left:
            return
        self._give_up(waiter)
        if waiter.left:
            raise ClientLeft("the client left before its body was read")
        raise LineTimeout

    def leave(self, size: int) -> None:
        """One has been read; the next in line begin."""
        self._reading -= 1
        self._reading_largest -= size > MEDIUM_BYTES
        while self._line and (not self._line[0][2].waits or self._is_free_for(self._line[0][0])):
            waiter = heapq.heappop(self._line)[2]
            if waiter.waits:
                waiter.waits = False
                waiter.has_turn = True
                self._begin(waiter.size)
                waiter.scope.cancel()

    def _is_free_for(self, size: int) -> bool:
        if size > MEDIUM_BYTES and self._reading_largest >= LARGEST_AT_ONCE:
            return False
        return self._reading < AT_ONCE

    def _begin(self, size: int) -> None:
        self._reading += 1
        self._reading_largest += size > MEDIUM_BYTES

    def _give_up(self, waiter: _Waiter) -> None:
        waiter.waits = False
        if waiter.has_turn:
            # Its turn came in the same step of the loop: hand it to the next one.
            self.leave(waiter.size)


_readers: RunVar[Readers] = RunVar("gpu_admission.readers")
