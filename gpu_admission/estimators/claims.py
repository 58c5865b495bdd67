"""Whose turn it is to run alone, to be measured.

Owns that there is one at a time on each route, and that runs which yield nothing become rare. When a
request should run alone is decided in ``measured``.
"""

from __future__ import annotations

_CLAIM_SECONDS = 5.0
_RUN_SECONDS = 600.0
_LONGEST_SKIP = 64
_MOST = 4


class Claims:
    """Turns to run alone: one at a time, and less often after each run that yielded nothing."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self._left = 0
        self._length = 1

    @property
    def skips(self) -> bool:
        """Whether the last runs yielded nothing, so that none should be tried now."""
        return self._left > 0

    def is_running(self, route: str) -> bool:
        return route in self._until

    def may(self, route: str, now: float) -> bool:
        """Whether a request may run alone now; then it is its turn."""
        self._until = {name: until for name, until in self._until.items() if until > now}
        if route in self._until or len(self._until) >= _MOST:
            return False
        if self._left:
            self._left -= 1
            return False
        self._until[route] = now + _CLAIM_SECONDS
        return True

    def begin(self, route: str, now: float) -> None:
        """It has started, and takes as long as it takes."""
        self._until[route] = now + _RUN_SECONDS

    def drop(self) -> None:
        """Nothing runs, as in a forked process."""
        self._until = {}

    def give_back(self, route: str) -> None:
        """It will not run alone after all."""
        self._until.pop(route, None)

    def end(self, route: str, *, fruitful: bool) -> None:
        if self._until.pop(route, None) is None:
            return
        self._length = 1 if fruitful else min(_LONGEST_SKIP, 2 * self._length)
        self._left = self._length - 1
