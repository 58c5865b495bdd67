"""Which requests are small: those that may start in the gap that a waiting head leaves.

Owns the sizes asked lately and what is read off them. When a gap may be used at all, and
how often, is decided in the ledger.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

_ASKED = 127
_LOOKS = 16
Sizes: TypeAlias = tuple[list[int], int, int]
"""What ``SmallSizes`` remembers, to be written down."""


class SmallSizes:
    """Small: at most ``part`` of the head, or among the smallest that together asked ``share`` of all bytes.

    The first rule protects a large head: a small request soon gives its room back. The second
    lets short requests pass a head that is not large itself, and bounds what they can take.
    """

    __slots__ = ("_asked", "_looks", "_part", "_share", "common", "note")

    def __init__(self, *, part: float = 1 / 4, share: float = 1 / 6) -> None:
        self._part = part
        self._share = share
        self._asked: deque[int] = deque(maxlen=_ASKED)
        self.common = 0
        """Sizes up to this many bytes are small beside any head, as last looked up."""
        self._looks = 0
        self.note: Callable[[int], None] = self._asked.append
        """Note that so many bytes were asked for."""

    def look(self) -> None:
        """A gap is about to be used: look ``common`` up again, if that was some time ago."""
        if not self._looks:
            self._looks = _LOOKS
            self.common = smallest(self._asked, self._share)
        self._looks -= 1

    def beside(self, head: int) -> int:
        """Bytes of the largest request that may pass a head of ``head`` bytes."""
        return max(self.common, int(head * self._part))

    def dump(self) -> Sizes:
        """All that ``load`` needs to go on from here."""
        return list(self._asked), self._looks, self.common

    def load(self, state: Sizes) -> None:
        asked, self._looks, self.common = state
        self._asked.clear()  # not a new one: ``note`` is bound to it
        self._asked.extend(asked)

    @property
    def asked(self) -> Sequence[int]:
        """Sizes asked lately, oldest first."""
        return tuple(self._asked)

    @property
    def median(self) -> int:
        """Median of the sizes asked for lately; 0 while there are none."""
        return sorted(self._asked)[len(self._asked) // 2] if self._asked else 0


def smallest(asked: Iterable[int], share: float) -> int:
    """The largest size for which all sizes up to it sum to at most ``share`` of all; 0 if there is none."""
    sizes = sorted(asked)
    most = sum(sizes) * share
    below = size = total = 0
    for larger in sizes:
        if larger > size:
            below, size = size, larger
        total += larger
        if total > most:
            return below
    return size
