"""A lock with a last word: what a call has stirred up is done when its outermost part ends."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Turn:
    """``with turn:`` holds ``lock``; ``last`` is called before the outermost block gives it back.

    A log reports in the middle of an append. What a report calls for may be another append, and
    must wait until the first has ended.
    """

    __slots__ = ("_depth", "_last", "lock")

    def __init__(self, last: Callable[[], None]) -> None:
        self.lock = threading.RLock()
        self._last = last
        self._depth = 0

    def __enter__(self) -> None:
        self.lock.acquire()
        self._depth += 1

    def __exit__(self, *error: object) -> None:
        try:
            if self._depth == 1:
                self._last()
        finally:
            self._depth -= 1
            self.lock.release()
