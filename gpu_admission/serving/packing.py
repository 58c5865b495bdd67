"""Which waiting calls share a batch, and what a batch may take.

Pure: no clock, no loop. A batch is padded to its longest row, so it takes rows x the costliest
row, never the sum: 31 rows of 20 tokens with one of 8,000 are 256,000 tokens, not 8,620.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from gpu_admission.serving.call import Call

CLEAN = 100
"""How many batches must end well before a learned limit is raised by an eighth."""


def padded(calls: Sequence[Call]) -> int:
    """Bytes of a batch of ``calls``."""
    return sum(call.rows for call in calls) * max((call.price for call in calls), default=0)


def padding_share(calls: Sequence[Call]) -> float:
    """The share of ``padded(calls)`` that is padding."""
    size = padded(calls)
    return 1 - sum(call.rows * call.price for call in calls) / size if size else 0.0


class Limits:
    """What a batch may take: as set, or less since one ran out of memory."""

    def __init__(self, rows: int, size: int | None, padding: float) -> None:
        self._most: tuple[int, float] = (rows, math.inf if size is None else size)
        self.rows, self.bytes = self._most
        self.padding = padding
        """Most of a batch that may be padding, as a share of it."""
        self._clean = 0

    def allow(self, rows: int, dearest: int, sum_of_prices: int) -> bool:
        """Whether that many rows may run together."""
        size = rows * dearest
        return rows <= self.rows and size <= self.bytes and sum_of_prices >= size * (1 - self.padding)

    def shrink(self, rows: int, size: int, most: int | None = None) -> None:
        """A batch of ``rows`` and ``size`` bytes did not fit: later ones get at most half, or ``most``."""
        self._clean = 0
        if size:
            self.bytes = min(self.bytes, size // 2 if most is None else most)
        else:
            # Without a price, rows can't be told apart.
            self.rows = max(1, min(self.rows, rows // 2))

    def ran_well(self) -> None:
        """What made a batch fail may be gone: after ``CLEAN`` good batches in a row, try a little more."""
        self._clean += 1
        if self._clean < CLEAN or (self.rows, self.bytes) == self._most:
            return
        self._clean = 0
        self.rows = min(self._most[0], self.rows + math.ceil(self.rows / 8))
        self.bytes = min(self._most[1], self.bytes + max(1, self.bytes // 8))


def pack(calls: Sequence[Call], limits: Limits) -> list[Call]:
    """Those of ``calls`` that run with the first: as many rows as may be, with the least padding.

    ``calls`` are in order of arrival, and so is the result. The first is always in it, even if it
    costs more than a learned limit, so no item is passed over for ever. The others are the ones
    closest to it in price: an outlier runs with others like it.
    """
    oldest = _first_rows(calls, limits)
    if limits.allow(*_totals(oldest)):
        return list(oldest)
    by_price = sorted(calls, key=lambda call: call.price)
    first, last = _window(by_price, by_price.index(calls[0]), limits)
    return sorted(by_price[first : last + 1], key=lambda call: call.number)


def halves(calls: Sequence[Call]) -> tuple[list[Call], list[Call]]:
    """``calls`` in two, the cheap and the dear, each in order of arrival."""
    by_price = sorted(calls, key=lambda call: call.price)
    middle = len(by_price) // 2
    cheap, dear = by_price[:middle], by_price[middle:]
    return sorted(cheap, key=lambda call: call.number), sorted(dear, key=lambda call: call.number)


def _first_rows(calls: Sequence[Call], limits: Limits) -> Sequence[Call]:
    rows = 0
    for place, call in enumerate(calls):
        rows += call.rows
        if rows > limits.rows:
            return calls[: max(1, place)]
    return calls


def _totals(calls: Sequence[Call]) -> tuple[int, int, int]:
    rows = sum(call.rows for call in calls)
    return rows, max(call.price for call in calls), sum(call.rows * call.price for call in calls)


def _window(by_price: Sequence[Call], head: int, limits: Limits) -> tuple[int, int]:
    """First and last place of the best run of calls, by price, that has ``head`` in it."""
    rows = [0, *accumulate(call.rows for call in by_price)]
    prices = [0, *accumulate(call.rows * call.price for call in by_price)]

    def fits(first: int, last: int) -> bool:
        sum_of_prices = prices[last + 1] - prices[first]
        return limits.allow(rows[last + 1] - rows[first], by_price[last].price, sum_of_prices)

    best, most = (head, head), by_price[head].rows
    for last in range(head, len(by_price)):
        # Each further one at the cheap end adds rows and padding: what does not fit now never will.
        first = bisect_left(range(head + 1), True, key=lambda first: fits(first, last))
        if first <= head and rows[last + 1] - rows[first] > most:
            best, most = (first, last), rows[last + 1] - rows[first]
    return best
