"""The turn in which one thread changes a state: a lock, and a place for what must not interrupt it.

Python may interrupt a thread between any two lines of a change: the garbage collector closes a
generator that holds a lease, a signal handler calls ``drain``. Such code runs in the very thread
that holds the lock, so a lock can't keep it out: it comes after the turn that it interrupted.
What is changed is the owner's business.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from gpu_admission.runtime.failure import log_failure
from gpu_admission.runtime.fork import in_child


class Turn:
    """``with turn:`` lets in one thread at a time; a turn inside a turn is part of it.

    Where every microsecond counts, use ``lock``, ``depth`` and ``late`` as ``__enter__`` and
    ``__exit__`` do.
    """

    __slots__ = ("__weakref__", "_catching_up", "depth", "late", "lock")

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

    def __enter__(self) -> None:
        self.lock.acquire()
        self.depth += 1

    def __exit__(self, *error: object) -> None:
        # From here on an interruption finds a whole state, and takes a turn of its own.
        self.depth -= 1
        self.lock.release()
        if self.late:
            self.catch_up()

    def take(self, change: Callable[[], object]) -> None:
        """Call ``change``, which takes a turn: now, or after the turn that it has interrupted."""
        with self.lock:
            if self.depth:
                self.late.append(change)
                return
        change()

    def catch_up(self) -> None:
        """Do what came in the middle of a turn, unless one is still being taken.

        One after the other, never one inside another: a collection may end thousands of leases.
        Whoever finds others at it leaves it to them; they look again when they are done, so nothing
        is left behind.
        """
        while self.late and not self.depth and not self._catching_up:
            self._catching_up = True
            try:
                while self.late:
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
