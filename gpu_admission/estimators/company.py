"""The part of its memory that a request takes only once with those beside it, such as a batch's step.

Owns the evidence for that part: it can't be seen while a request runs alone. Requests that began together
have to be among it, since those that did not may each be at its peak while the others are not, and only
look as if they shared. It counts as the least that any moment has shown.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import msgspec

from gpu_admission.runtime import clock

_FEW = 3
"""How many requests have to run together to show it."""
_ENOUGH = 15
"""Moments needed before it is believed."""
_WAVES = 2
"""How many of these have to be of requests that began together."""
_MOST = 400
"""Moments after which no more are looked at."""
_BELIEVED = 0.9
_LARGEST = 0.25
Features: TypeAlias = tuple[float, ...]
Alone: TypeAlias = "Callable[[str, Features, int], float | None]"
"""Bytes that requests of a route, so many with features of that sum, take one by one; ``None``: not known."""


class Look(Protocol):
    """What shows the bytes in use."""

    @property
    def idle(self) -> int | None:
        """Bytes in use while nothing ran; ``None``: not seen yet."""
        ...

    def resume(self) -> int:
        """Start looking, beside whatever runs."""
        ...

    def peak(self) -> int:
        """The most bytes in use since then; look no more."""
        ...


class Moment(msgspec.Struct):
    """A time in which the same requests ran, and the most bytes that all of them took."""

    used: int
    is_wave: bool
    """They had begun together."""
    count: int
    unknown: int
    """How many of them have not ended well, so that what they really asked for is not known."""
    sums: dict[str, tuple[int, Features]] = {}
    """For each route, how many have, and the sums of their features."""

    def take(self, route: str, features: Features) -> None:
        """One of them has ended, and had such ``features``."""
        count, before = self.sums.get(route, (0, (0.0,) * len(features)))
        self.sums[route] = (count + 1, tuple(map(float.__add__, before, features)))
        self.unknown -= 1

    def shown(self, alone: Alone, least: float) -> float | None:
        """The part that all take only once, if they take ``least`` bytes one by one, as far as is known."""
        apart = [alone(route, features, count) for route, (count, features) in self.sums.items()]
        known = [size for size in apart if size is not None]
        total = sum(known)
        if len(known) < len(apart) or total < max(1.0, least):
            return None
        return (1 - self.used / total) * self.count / (self.count - 1)


class _Running(msgspec.Struct):
    began: float
    moments: list[Moment] = []


class Company:
    """Who runs now, and what they share. Joining, leaving and ending happen inside the ledger's turn."""

    def __init__(self, *, seconds: float = 0.05) -> None:
        """``seconds``: how long a moment has to last, so that whoever has just begun is at work."""
        self._seconds = seconds
        self._looked = 0
        self._settled: deque[Moment] = deque()
        """Those that have come to be known, for the next charge to take in."""
        self._moments: list[Moment] = []
        self._weighed = 0
        self._least = math.inf
        self._shown = self._waves = 0
        """How many of those that were weighed showed anything, and how many had begun together."""
        self._kept = 0.0
        """What was seen before a restart."""
        self.begin_anew()

    def begin_anew(self) -> None:
        """Nothing runs, as in a forked process; what was seen stays."""
        self._running: dict[int, _Running] = {}
        self._left: dict[int, _Running] = {}
        self._since = 0.0
        self._is_looking = False

    def joins(self, who: int, meter: Look) -> None:
        """One more runs."""
        self._look(meter, len(self._running) + 1)
        self._running[who] = _Running(clock.monotonic())

    def leaves(self, who: int, meter: Look) -> None:
        """One runs no more."""
        if who in self._running:
            self._look(meter, len(self._running) - 1)
            self._left[who] = self._running.pop(who)

    def ended(self, who: int, route: str, features: Features | None) -> None:
        """What one that has left really asked for; ``None``: it did not end well."""
        gone = self._left.pop(who, None)
        if gone is None or features is None:
            return
        for moment in gone.moments:
            moment.take(route, features)
            if not moment.unknown:
                self._settled.append(moment)

    @property
    def is_learning(self) -> bool:
        """Whether it still looks for what those who run now share."""
        return len(self._running) > 0 and self._looked < _MOST

    def ran_out(self) -> None:
        """Memory ran out: they have nothing in common until it has been seen again."""
        self._settled.clear()
        self._moments = []
        self._looked = 0
        self._kept = 0.0
        self.weigh_again()

    def weigh_again(self) -> None:
        """What requests take alone is known better now."""
        self._least, self._weighed = math.inf, 0
        self._shown = self._waves = 0

    def shared(self, alone: Alone, capacity: int) -> float:
        """The part of what each takes alone that those running together take only once.

        Moments in which they would not fill a quarter of the ``capacity`` do not count: there is room then.
        """
        while self._settled:
            self._moments.append(self._settled.popleft())
        while self._weighed < len(self._moments):
            moment = self._moments[self._weighed]
            self._weighed += 1
            shown = moment.shown(alone, capacity / 4)
            if shown is not None:
                self._shown += 1
                self._waves += moment.is_wave
                self._least = min(self._least, shown)
        if self._shown < _ENOUGH or self._waves < _WAVES:
            return self._kept
        return min(_LARGEST, _BELIEVED * max(0.0, self._least))

    def keep(self, share: Any) -> None:
        """Believe ``share``, which was seen before a restart, until enough is seen again."""
        self._kept = min(_LARGEST, max(0.0, float(share)))

    def _look(self, meter: Look, after: int) -> None:
        """The moment that ends now, in which the same requests ran throughout; ``after`` run in the next."""
        now = clock.monotonic()
        lasted, self._since = now - self._since, now
        if self._is_looking and meter.idle is not None:
            used = meter.peak() - meter.idle
            if lasted >= self._seconds:
                self._note(used)
        self._is_looking = meter.idle is not None and after >= _FEW and self._looked < _MOST
        if self._is_looking:
            meter.resume()

    def _note(self, used: int) -> None:
        running = self._running.values()
        began = [each.began for each in running]
        is_wave = max(began) - min(began) < self._seconds
        moment = Moment(used, is_wave, len(running), len(running))
        self._looked += 1
        for each in running:
            each.moments.append(moment)


def own(alone: int, share: float, *, largest: float, capacity: int) -> int:
    """The charge for a request that takes ``alone`` bytes by itself, ``share`` of it together with others.

    In proportion, so that the charges that fill ``capacity`` leave room for the ``largest`` shared part.
    """
    together = share * min(capacity, max(largest, alone))
    return math.ceil(alone * (1 - share) * capacity / (capacity - together))
