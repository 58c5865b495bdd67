"""Which event loop is running, whether another still does, and how to call into it from elsewhere.

The only place that tells asyncio from trio; everything else is AnyIO.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

running_asyncio = asyncio._get_running_loop
"""The running asyncio loop, or ``None``; it raises nothing, and takes a tenth of the time."""


def running_loop() -> Any:
    """The running asyncio loop, or trio's token, as an identity. Raises ``RuntimeError`` outside of both."""
    loop = running_asyncio()
    if loop is not None:
        return loop
    if "trio" in sys.modules:
        import trio

        return trio.lowlevel.current_trio_token()
    raise RuntimeError("no event loop is running")


def is_running(loop: Any) -> bool:
    """Whether ``loop`` (from ``running_loop``) is running now."""
    if isinstance(loop, asyncio.AbstractEventLoop):
        return loop.is_running()
    return call_soon(loop, _nothing)


def call_soon(loop: Any, function: Callable[[], object]) -> bool:
    """Call ``function`` in ``loop`` from any thread; ``False`` when that loop has ended."""
    try:
        if isinstance(loop, asyncio.AbstractEventLoop):
            loop.call_soon_threadsafe(function)
        else:
            loop.run_sync_soon(function)
    except RuntimeError:
        return False
    return True


def _nothing() -> None:
    return None


_NO_LOOP = object()


class Home:
    """The one event loop that serves an object at a time: what waits there is woken there."""

    __slots__ = ("loop",)

    def __init__(self) -> None:
        self.loop: Any = _NO_LOOP

    @property
    def is_taken(self) -> bool:
        """Whether a loop has been here that still runs."""
        return self.loop is not _NO_LOOP and is_running(self.loop)

    def call(self, function: Callable[[], object]) -> None:
        """Call ``function`` there: at once where this is it, else soon. Not where it has ended."""
        if self._is_here():
            function()
        else:
            call_soon(self.loop, function)

    def _is_here(self) -> bool:
        try:
            return running_loop() is self.loop
        except RuntimeError:
            return False
