"""The one event loop that serves an object: the program's, or one of our own where it runs none.

Owns which that is, and moving from one to the other. What tells the kinds of loops apart is in ``loop``.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from gpu_admission.runtime.loop import call_soon, has_loop, is_running, result_of, running_loop, wait_for

T = TypeVar("T")
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

    def leave(self) -> None:
        """Let a loop of our own end, once no thread waits in it any more."""
        with self._lock:
            self._own = None

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
                return wait_for(self.loop, ask)
            try:
                return result_of(asked, own.loop)
            except RuntimeError:
                if self._own is own:
                    raise

    def _own_loop(self) -> OwnLoop:
        self._own = own = self._own or OwnLoop()
        return own

    def _is_here(self) -> bool:
        return has_loop() and running_loop() is self.loop
