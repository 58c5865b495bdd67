"""What requests really took, as shares of what was estimated, on one route.

Owns two windows: for each size the latest shares, whose median follows a drift within a few
requests, and for all sizes together how far shares were from the median that stood when
they came, whose quantile says how much more a next one may take. Pure and synchronous: no
clock, no I/O, no lock; a bounded number of floats. ``Learned`` decides what is asked of it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import Any

_PER_OCTAVE = 4
_LARGEST = 62 * _PER_OCTAVE
_ENOUGH = 5
"""Shares that a median needs; a size with fewer borrows from its neighbours."""


class History:
    """Shares of actual to estimated bytes on one route, newest last."""

    def __init__(self, *, window: int, recent: int, quantile: float) -> None:
        self.recent = recent
        self.quantile = quantile
        self.count = 0
        """Observations ever made."""
        self._sizes: dict[int, deque[float]] = {}
        self._errors: deque[float] = deque(maxlen=window)
        self._ordered: list[float] = []
        self._medians: dict[int, float] = {}
        self._steps: tuple[list[int], list[float]] | None = None

    def add(self, estimated: int, share: float) -> None:
        """One more request, which was estimated at ``estimated`` bytes and took ``share`` of them."""
        size = size_class(estimated)
        if self.count:
            self._add_error(share / self._median(size))
        self._sizes.setdefault(size, deque(maxlen=self.recent)).append(share)
        self.count += 1
        self._changed()

    def forget(self, estimated: int) -> None:
        """Drop the shares of this size: what comes next contradicts them."""
        self._sizes.pop(size_class(estimated), None)
        self._changed()

    def bytes_for(self, estimated: int) -> float:
        """What a request estimated at ``estimated`` bytes takes at most, with the chance ``quantile``.

        Never less than is said of a smaller one. Needs at least one observation.
        """
        size = size_class(estimated)
        bounds, most = self._steps or self._climb()
        below = bisect_left(bounds, size)
        smaller = most[below - 1] if below else 0.0
        return max(estimated * self._median(size), smaller) * self._spread()

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        return {
            "shares": {str(size): list(shares) for size, shares in self._sizes.items()},
            "errors": list(self._errors),
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Take in what ``to_dict`` gave. Raises ``ValueError`` for anything else."""
        try:
            for name, shares in saved["shares"].items():
                size = min(_LARGEST, max(0, int(name)))
                self._sizes[size] = deque(map(_share, shares), maxlen=self.recent)
            for error in saved["errors"]:
                self._add_error(_share(error))
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"not a saved history: {error!r}") from None
        self._sizes = {size: shares for size, shares in self._sizes.items() if shares}
        self.count = sum(map(len, self._sizes.values()))
        self._changed()

    def _changed(self) -> None:
        self._medians.clear()
        self._steps = None

    def _add_error(self, error: float) -> None:
        if len(self._errors) == self._errors.maxlen:
            del self._ordered[bisect_left(self._ordered, self._errors[0])]
        self._errors.append(error)
        insort(self._ordered, error)

    def _spread(self) -> float:
        """The order statistic below which a further error stays with the chance; of few, the largest."""
        known = len(self._ordered)
        if not known:
            return 1.0
        return self._ordered[min(known, math.ceil(self.quantile * (known + 1))) - 1]

    def _median(self, size: int) -> float:
        known = self._medians.get(size)
        if known is None:
            known = self._medians[size] = self._near_median(size)
        return known

    def _near_median(self, size: int) -> float:
        shares = self._sizes.get(size)
        if shares is not None and len(shares) >= _ENOUGH:
            return median(shares)
        near: list[float] = []
        for other in sorted(self._sizes, key=lambda known: abs(known - size)):
            near.extend(self._sizes[other])
            if len(near) >= _ENOUGH:
                break
        return median(near) if near else 1.0

    def _climb(self) -> tuple[list[int], list[float]]:
        """For each known size the most that it, or a smaller one, takes at its upper bound."""
        bounds, most, highest = sorted(self._sizes), [], 0.0
        for size in bounds:
            highest = max(highest, 2 ** ((size + 1) / _PER_OCTAVE) * self._median(size))
            most.append(highest)
        self._steps = (bounds, most)
        return self._steps


def size_class(size: int) -> int:
    """Quarters of a doubling: sizes of one class differ by less than a fifth."""
    return min(_LARGEST, int(math.log2(max(1, size)) * _PER_OCTAVE))


def _share(value: Any) -> float:
    share = float(value)
    if not 0 < share < math.inf:
        raise ValueError(f"{value!r} is not a share: it must be a positive number")
    return share
