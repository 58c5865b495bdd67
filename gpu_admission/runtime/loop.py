"""Which event loop is running, whether another still does, and how to call into it from elsewhere.

The only place that tells asyncio from trio; everything else is AnyIO.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
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


def wait_for(loop: Any, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """What ``ask()`` returns, awaited in ``loop`` while this thread waits. ``RuntimeError`` if that ends."""
    if isinstance(loop, asyncio.AbstractEventLoop):
        return result_of(asyncio.run_coroutine_threadsafe(ask(), loop), loop)
    import trio

    try:
        return trio.from_thread.run(ask, trio_token=loop)
    except (trio.Cancelled, trio.RunFinishedError):
        raise RuntimeError(_ENDED) from None


def result_of(future: Future[T], loop: asyncio.AbstractEventLoop) -> T:
    """The same of a ``future`` that is settled in ``loop``."""
    try:
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
    finally:
        # Where the exception of a signal has ended the wait: nothing may be granted to nobody.
        future.cancel()


def _nothing() -> None:
    return None
