"""What requests really took, as shares of what was estimated, for one route, model and flow.

Owns a window of shares for each size that was asked, and what may be concluded from them: a
little upwards from one share, downwards only from many. Pure and synchronous: no clock, no I/O,
no lock; a bounded number of floats. ``Learned`` decides what is asked of it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Mapping
from typing import Any

_PER_OCTAVE = 2
_LARGEST = 62 * _PER_OCTAVE
_ENOUGH = 100
"""Enough shares for a 99 % quantile to mean something; a size with fewer also looks at its neighbours."""
_USUAL = 8
"""With this many shares, one far above all of them is an outlier."""
_FAR = 2.0
_NEWEST = 32
"""Latest shares that always count, whatever the quantile says: it lags behind a rising need."""
_MOST_OF_THEM = 0.98
"""Share of a size's requests of which ``usual`` speaks: two in a hundred of 200 are no chance."""
_RUN = 64
"""After this many shares in a row far below the charge, earlier ones are taken for another model's."""


class History:
    """Shares of actual to estimated bytes, by the size estimated, newest last."""

    def __init__(self, *, window: int, quantile: float, trust: int) -> None:
        self.window = window
        self.quantile = quantile
        self.trust = trust
        self.count = 0
        """Observations ever made."""
        self._sizes: dict[int, _Window] = {}
        self._latest: deque[float] = deque(maxlen=_NEWEST)
        self._known: dict[int, float] = {}
        self._steps: tuple[list[int], list[float]] | None = None

    def add(self, estimated: int, share: float) -> None:
        """One more request, which was estimated at ``estimated`` bytes and took ``share`` of them."""
        size = size_class(estimated)
        own = self._sizes.get(size)
        if own is None:
            own = self._sizes[size] = _Window(self.window)
        if own.add(share):
            self._latest.append(share)
        if own.low_run(share, self._quantile_of(own.ordered)) >= _RUN:
            del self._sizes[size]
            self._latest.clear()
        self.count += 1
        self._changed()

    def forget(self, estimated: int) -> None:
        """Drop the shares of this size: new ones contradict them."""
        self._sizes.pop(size_class(estimated), None)
        self._latest.clear()
        self._changed()

    def doubt(self) -> None:
        """Believe no share below 1 until as many have come again."""
        for own in self._sizes.values():
            own.evidence = 0
        self._changed()

    def bytes_for(self, estimated: int, *, caution: int = 1) -> float:
        """What to charge a request estimated at ``estimated`` bytes, without the margin.

        Never less than what smaller ones took. ``caution`` times as many shares are needed
        before it is less than ``estimated``. Needs at least one observation.
        """
        size = size_class(estimated)
        bounds, most = self._steps or self._climb()
        below = bisect_left(bounds, size)
        smaller = most[below - 1] if below else 0.0
        return max(estimated * self._share(size, caution), smaller)

    def is_known(self, estimated: int, *, caution: int = 1) -> bool:
        """Whether this very size was seen often enough to be judged by itself."""
        own = self._sizes.get(size_class(estimated))
        return own is not None and own.evidence >= min(self.window, _ENOUGH * caution)

    def usual(self, estimated: int) -> float:
        """What 98 in a hundred of this very size took at most; 0 if none was seen."""
        own = self._sizes.get(size_class(estimated))
        return estimated * own.ordered[math.ceil(_MOST_OF_THEM * len(own.ordered)) - 1] if own else 0.0

    def taken_by(self, estimated: int) -> float:
        """What requests estimated at ``estimated`` bytes took, however few were seen; 0 if none was."""
        return estimated * self._near(size_class(estimated)) if self._sizes else 0.0

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        return {
            str(size): {"shares": list(own.shares), "evidence": own.evidence}
            for size, own in self._sizes.items()
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Take in what ``to_dict`` gave. Raises ``ValueError`` for anything else."""
        try:
            for name, values in saved.items():
                own = _Window(self.window)
                for share in values["shares"]:
                    own.put(_checked(share))
                own.evidence = min(own.evidence, max(0, int(values["evidence"])))
                if own.shares:
                    self._sizes[min(_LARGEST, max(0, int(name)))] = own
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"not a saved history: {error!r}") from None
        self.count = sum(len(own.shares) for own in self._sizes.values())
        self._changed()

    def _changed(self) -> None:
        self._known.clear()
        self._steps = None

    def _share(self, size: int, caution: int) -> float:
        """The quantile; below 1 only as far as the evidence for this very size allows."""
        share = self._near(size)
        if share >= 1:
            return share
        own = self._sizes.get(size)
        needed = min(self.window, self.trust * caution)
        enough = max(needed + 1, min(self.window, _ENOUGH * caution))
        belief = min(1.0, (own.evidence - needed) / (enough - needed)) if own else 0.0
        return 1 - belief * (1 - share) if belief > 0 else 1.0

    def _near(self, size: int) -> float:
        """The quantile of the shares of this size and, while it has few, of those next to it."""
        known = self._known.get(size)
        if known is None:
            known = max((self._quantile_of(sorted(self._nearest(size))), *self._newest(size)))
            self._known[size] = known
        return known

    def _nearest(self, size: int) -> list[float]:
        near: list[float] = []
        for other in sorted(self._sizes, key=lambda of: abs(of - size)):
            near.extend(self._sizes[other].shares)
            if len(near) >= _ENOUGH:
                break
        return near

    def _newest(self, size: int) -> list[float]:
        """The last shares of this size, and of any size while this one has few."""
        own = list(self._sizes[size].shares) if size in self._sizes else []
        return own[-_NEWEST:] if len(own) >= _ENOUGH else [*own[-_NEWEST:], *self._latest]

    def _quantile_of(self, ordered: list[float]) -> float:
        """The order statistic that the next share exceeds with the remaining chance; of few, the largest."""
        known = len(ordered)
        return ordered[min(known, math.ceil(self.quantile * (known + 1))) - 1] if known else 1.0

    def _climb(self) -> tuple[list[int], list[float]]:
        """For each known size the most that it, or a smaller one, was seen to take."""
        bounds, most, highest = sorted(self._sizes), [], 0.0
        for size in bounds:
            highest = max(highest, 2 ** (size / _PER_OCTAVE) * self._quantile_of(self._sizes[size].ordered))
            most.append(highest)
        self._steps = (bounds, most)
        return self._steps


class _Window:
    """The last shares of one size."""

    __slots__ = ("_lone", "_low", "evidence", "ordered", "shares")

    def __init__(self, length: int) -> None:
        self.shares: deque[float] = deque(maxlen=length)
        self.ordered: list[float] = []
        self.evidence = 0
        """Shares since the last reason for doubt."""
        self._lone: tuple[float, int] | None = None
        self._low = 0

    def add(self, share: float) -> bool:
        """Whether ``share`` counts: one far above all others waits until a second such share comes."""
        far = len(self.shares) >= _USUAL and share > _FAR * self.ordered[-1]
        if not far:
            self.put(share)
            if self._lone and self.evidence - self._lone[1] > (self.shares.maxlen or 0):
                self._lone = None
        elif self._lone is None:
            self._lone = (share, self.evidence)
            return False
        else:
            self.put(self._lone[0])
            self.put(share)
            self._lone = None
        return True

    def put(self, share: float) -> None:
        if len(self.shares) == self.shares.maxlen:
            del self.ordered[bisect_right(self.ordered, self.shares[0]) - 1]
        self.shares.append(share)
        insort(self.ordered, share)
        self.evidence += 1

    def low_run(self, share: float, charged: float) -> int:
        """Shares in a row that were far below ``charged``, where that is above the estimate."""
        self._low = self._low + 1 if charged > 1 and _FAR * share < charged else 0
        return self._low


def size_class(size: int) -> int:
    """Size classes of half a doubling each: sizes in one class differ by less than 42 %."""
    return min(_LARGEST, int(math.log2(max(1, size)) * _PER_OCTAVE))


def _checked(value: Any) -> float:
    share = float(value)
    if not 0 < share < math.inf:
        raise ValueError(f"{value!r} is not a share: it must be a positive number")
    return share
