"""Which event loop is running, whether another still does, and how to call into it from elsewhere.

The only place that tells asyncio from trio; everything else is AnyIO.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
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
        return _result_of(asyncio.run_coroutine_threadsafe(ask(), loop), loop)
    import trio

    try:
        return trio.from_thread.run(ask, trio_token=loop)
    except (trio.Cancelled, trio.RunFinishedError):
        raise RuntimeError(_ENDED) from None


def _result_of(future: Future[T], loop: asyncio.AbstractEventLoop) -> T:
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


_NO_LOOP = object()


class OwnLoop:
    """An asyncio loop in a thread of its own, until nobody knows it any more: for programs that run none."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._asked: weakref.WeakSet[Future[Any]] = weakref.WeakSet()
        weakref.finalize(self, call_soon, self.loop, self.loop.stop)
        begun = threading.Event()
        self.loop.call_soon(begun.set)
        threading.Thread(target=_run, args=(self.loop,), name="gpu_admission.loop", daemon=True).start()
        begun.wait()

    def ask(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        """Have ``ask()`` awaited there."""
        future = asyncio.run_coroutine_threadsafe(ask(), self.loop)
        self._asked.add(future)
        return future

    def send_away(self) -> None:
        """Cancel all that is awaited there."""
        for future in tuple(self._asked):
            future.cancel()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left))
    loop.close()


class Home:
    """The one event loop that serves an object at a time: what waits there is woken there."""

    __slots__ = ("_lock", "_own", "loop")

    def __init__(self) -> None:
        self.loop: Any = _NO_LOOP
        self._own: OwnLoop | None = None
        self._lock = threading.Lock()

    @property
    def is_taken(self) -> bool:
        """Whether a loop of the program's has been here that still runs."""
        is_own = self._own is not None and self._own.loop is self.loop
        return self.loop is not _NO_LOOP and not is_own and is_running(self.loop)

    @property
    def is_elsewhere(self) -> bool:
        """Whether a loop that still runs is not the one that runs here."""
        return self.is_taken and not self._is_here()

    @contextmanager
    def moving(self, loop: Any) -> Iterator[None]:
        """``loop`` serves from the block's end on. Threads that wait in a loop of our own will ask there."""
        with self._lock:
            own = self._own
            if own is not None and own.loop is not loop:
                self._own = None
                own.send_away()
            yield
            self.loop = loop

    def call(self, function: Callable[[], object]) -> None:
        """Call ``function`` there: at once where this is it, else soon. Not where it has ended."""
        if self._is_here():
            function()
        else:
            call_soon(self.loop, function)

    def wait_for(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What ``ask()`` returns, awaited there while this thread, which has no loop of its own, waits.

        Where the program runs none, in a loop of our own, until it runs one. Raises ``RuntimeError`` in
        a thread with a running loop.
        """
        if has_loop():
            raise RuntimeError("a plain `with` would block the event loop of this thread: use `async with`")
        while True:
            with self._lock:
                own = None if self.is_taken else self._own_loop()
                asked = None if own is None else own.ask(ask)
            if own is None or asked is None:
                return _wait_for(self.loop, ask)
            try:
                return _result_of(asked, own.loop)
            except RuntimeError:
                if self._own is own:
                    raise

    def _own_loop(self) -> OwnLoop:
        self._own = own = self._own or OwnLoop()
        return own

    def _is_here(self) -> bool:
        return has_loop() and running_loop() is self.loop
