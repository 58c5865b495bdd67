"""Which event loop is running, whether another still does, and how to call into it from elsewhere.

The only place that tells asyncio from trio; everything else is AnyIO.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

T = TypeVar("T")
LOOK_SECONDS = 1.0
"""Seconds between a waiting thread's checks whether its loop still runs."""
_ENDED = "the event loop has ended while a thread waited for it: end the threads that wait before their loop"

running_asyncio = asyncio._get_running_loop
"""The running asyncio loop, or ``None``. It raises nothing, but asks the system for the process's id: a
request that is to cost little asks once."""


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


def has_loop() -> bool:
    """Whether this thread runs an event loop."""
    return loop_here() is not None


def loop_here() -> Any:
    """As ``running_loop``; ``None`` outside of both."""
    try:
        return running_asyncio() or running_loop()
    except RuntimeError:
        return None


def call_within(loop: Any, seconds: float, function: Callable[[], object]) -> None:
    """Call ``function`` in ``loop``, which runs in this thread, after ``seconds`` at the latest."""
    if isinstance(loop, asyncio.AbstractEventLoop):
        loop.call_later(seconds, function)
    else:
        loop.run_sync_soon(function)


def _wait_for(loop: Any, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
    if isinstance(loop, asyncio.AbstractEventLoop):
        return _wait_for_asyncio(loop, ask)
    import trio

    try:
        return trio.from_thread.run(ask, trio_token=loop)
    except (trio.Cancelled, trio.RunFinishedError):
        raise RuntimeError(_ENDED) from None


def _wait_for_asyncio(loop: asyncio.AbstractEventLoop, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
    future = asyncio.run_coroutine_threadsafe(ask(), loop)
    while True:
        try:
            return future.result(LOOK_SECONDS)
        except TimeoutError:
            if future.done():
                return future.result()  # just now, or its own TimeoutError
            if not loop.is_running() and future.cancel():
                raise RuntimeError(_ENDED) from None
        except CancelledError:
            raise RuntimeError(_ENDED) from None


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

    @property
    def is_elsewhere(self) -> bool:
        """Whether a loop that still runs is not the one that runs here."""
        return self.is_taken and not self._is_here()

    def call(self, function: Callable[[], object]) -> None:
        """Call ``function`` there: at once where this is it, else soon. Not where it has ended."""
        if self._is_here():
            function()
        else:
            call_soon(self.loop, function)

    def wait_for(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What ``ask()`` returns, awaited there while this thread, which has no loop of its own, waits.

        Raises ``RuntimeError`` in a thread with a running loop, and where there is no loop to ask in.
        """
        if has_loop():
            raise RuntimeError("a plain `with` would block the event loop of this thread: use `async with`")
        if not self.is_taken:
            raise RuntimeError(
                "a plain `with` waits through the event loop that serves requests, and none has yet: "
                "use `async with` inside a loop"
            )
        return _wait_for(self.loop, ask)

    def _is_here(self) -> bool:
        return has_loop() and running_loop() is self.loop
