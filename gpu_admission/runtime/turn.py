"""The turn in which one thread changes a state: a lock, and a place for what must not interrupt it.

Python may interrupt a thread between any two lines of a change: the garbage collector closes a
generator that holds a lease, a signal handler calls ``drain``. Such code runs in the very thread
that holds the lock, so a lock can't keep it out: it comes after the turn that it interrupted.
Nor may it wait for a turn of another thread: the code that it interrupts may hold a lock, of logging
or of a library, that the other thread needs to end its turn. What is changed is the owner's business.
"""

from __future__ import annotations

import _thread
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from gpu_admission.runtime.failure import log_failure
from gpu_admission.runtime.fork import in_child

Change: TypeAlias = Callable[[], Callable[[], object] | None]
PATIENCE = 0.05
"""Seconds to wait for a turn to end before what can't wait is left to be done after it. Turns are short."""


class Turn:
    """``with turn:`` lets in one thread at a time; a turn inside a turn is part of it.

    Where every microsecond counts, use ``lock``, ``depth`` and ``late`` as ``__enter__`` and
    ``__exit__`` do.
    """

    __slots__ = ("__weakref__", "_awaited", "_catching_up", "depth", "late", "lock")

    def __init__(self, lock: Any = None) -> None:
        self._make()
        if lock is not None:
            self.lock = lock
        in_child(self._make)

    def _make(self) -> None:
        """Called at first, and in a forked process, where a thread that is gone may hold the lock."""
        self.lock = threading.RLock()
        """Its own lock, or one shared with others, which must then be reentrant."""
        self.depth = 0
        """How many turns are nested. Under the lock, above 0 means: taken by this very thread."""
        self.late: deque[Callable[[], object]] = deque()
        """What came in the middle of a turn and is to be done after it."""
        self._catching_up = False
        self._awaited = False
        """A thread waits for the lock, to do then what is late."""

    def __enter__(self) -> None:
        self.lock.acquire()
        self.depth += 1

    def __exit__(self, *error: object) -> None:
        # From here on an interruption finds a whole state, and takes a turn of its own.
        self.depth -= 1
        self.lock.release()
        if self.late:
            self.catch_up()

    def take(self, change: Change) -> None:
        """Call ``change`` in a turn, and then, after it, what ``change`` returns.

        Now, or after the turn that this call has interrupted, or that another thread takes for long.
        """
        if not (self.lock.acquire(False) or self.waited()):
            self.leave(partial(self.take, change))
            return
        try:
            if self.depth:
                self.late.append(partial(self.take, change))
                return
            self.depth += 1
            try:
                follows = change()
            finally:
                self.depth -= 1
        finally:
            self.lock.release()
        if follows is not None:
            follows()
        if self.late:
            self.catch_up()

    def waited(self) -> bool:
        """Whether the lock became free, and is ours now; ``False``, soon, where it stays taken."""
        # Where others have waited in vain just now, don't: one collection may end thousands.
        return not self._awaited and bool(self.lock.acquire(timeout=PATIENCE))

    def leave(self, change: Callable[[], object]) -> None:
        """Have ``change`` done once the lock is free, which another thread holds."""
        self.late.append(change)
        if not self._awaited:
            self._awaited = True
            try:
                _thread.start_new_thread(self._catch_up_when_free, ())
            except RuntimeError:  # too many threads: it comes after the turn that is being taken, or the next
                self._awaited = False

    def _catch_up_when_free(self) -> None:
        with self.lock:
            self._awaited = False
        self.catch_up()

    def catch_up(self) -> None:
        """Do what came in the middle of a turn, unless one is still being taken.

        One after the other, never one inside another: a collection may end thousands of leases.
        Whoever finds others at it leaves it to them; they look again when they are done, so nothing
        is left behind. So does whoever finds that a thread waits for the lock to do it.
        """
        while self.late and not (self.depth or self._catching_up or self._awaited):
            self._catching_up = True
            try:
                while self.late and not self._awaited:
                    self._do(self.late.popleft())
            except IndexError:  # another thread took it
                pass
            finally:
                self._catching_up = False

    def _do(self, change: Callable[[], object]) -> None:
        try:
            change()
        except Exception as error:  # it concerns nobody here: it must not fail the caller whose turn it was
            log_failure("what came in the middle of another change failed", error, "it is left out")
