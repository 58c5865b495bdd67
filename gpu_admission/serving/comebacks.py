"""Whether the callers of the last batch are worth waiting for: they may come back with their next item.

Otherwise, clients that ask again at once would run in two halves, one while the other is being
answered, and the fixed cost of a batch would be paid twice. Pure: time is an argument.
"""

from __future__ import annotations

import math


class Comebacks:
    """How many of a batch's callers come again soon after it.

    They are waited for as long as the batch took, but at most ``max_wait``, and only while at least
    half of those before them came back: an idle handler must not keep an item waiting for company
    that never comes.
    """

    def __init__(self) -> None:
        self.until = -math.inf
        """How long they are waited for."""
        self._answered = 0
        self._missing = 0
        self._pays = False

    def answered(self, items: int, now: float, longest: float) -> None:
        """A batch of ``items`` has ended. One alone has no company to wait for."""
        if self._answered:
            self._pays = 2 * self._missing <= self._answered
        self._answered = self._missing = items if items > 1 else 0
        self.until = now + longest

    def came(self, now: float) -> bool:
        """An item has come; returns whether it was the last one waited for."""
        if not self._missing or now >= self.until:
            return False
        self._missing -= 1
        return not self._missing

    def are_expected(self, now: float) -> bool:
        """Whether it is worth waiting, until ``until``, before the next batch starts."""
        return self._pays and self._missing > 0 and now < self.until
