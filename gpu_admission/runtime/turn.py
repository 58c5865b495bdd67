"""One lock, and what may not come in the middle: the turn in which one thread changes a state.

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
    """``with turn:`` one thread at a time; turns in turns are one.

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
        """At first, and in a forked process: there the lock may be held by a thread that is not there."""
        self.lock = threading.RLock()
        """Its own, or one that it has in common with others: then it must be reentrant."""
        self.depth = 0
        """Turns in turns. Under the lock, above 0 means: by this very thread."""
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
        """Call ``change``, which takes a turn: now, or after the one that it has interrupted."""
        with self.lock:
            if self.depth:
                self.late.append(change)
                return
        change()

    def catch_up(self) -> None:
        """Do what came in the middle of a turn, unless one is still being taken.

        One after the other, never one inside another: a collection may end thousands of leases.
        Who finds others at it leaves it to them; they look again when they are through, so
        nothing is left behind.
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
        except Exception as error:  # of nobody's who is here: it must not fail the one whose turn it was
            log_failure("what came in the middle of another change failed", error, "it is left out")
