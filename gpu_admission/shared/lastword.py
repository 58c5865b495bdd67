"""A lock with a last word: what a call has stirred up is done when its outermost part ends."""

from __future__ import annotations

import threading
from collections.abc import Callable


class LastWord:
    """``with last_word:`` holds ``lock``; ``last`` is called before the outermost block gives it back.

    A log reports in the middle of an append. What a report calls for may be another append, and
    must wait until the first has ended.
    """

    __slots__ = ("_last", "depth", "lock")

    def __init__(self, last: Callable[[], None]) -> None:
        self.lock = threading.RLock()
        self._last = last
        self.depth = 0
        """Blocks in blocks. Inside of one, above 1 means: this very thread was in the middle of another."""

    def __enter__(self) -> None:
        self.lock.acquire()
        self.depth += 1

    def __exit__(self, *error: object) -> None:
        try:
            if self.depth == 1:
                self._last()
        finally:
            self.depth -= 1
            self.lock.release()
