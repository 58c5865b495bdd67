"""A sum of features fitted to what was measured, that is never below a measurement.

Owns the fit of one route: least squares with coefficients that are not negative, lifted until it covers
every row. So more of anything never costs less, and what was seen for a size is never undercut. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

_MOST_ROWS = 128
_PER_OCTAVE = 8
"""Requests whose features differ by less than 9 % count as alike."""
_SWEEPS = 100
_RIDGE = 1e-6
Features = Sequence[float]


class Seen(NamedTuple):
    """Requests alike, and the most that one of them took."""

    features: tuple[float, ...]
    taken: int
    size: tuple[float, ...]
    """What tells how large they were."""


class Envelope:
    """Rows of features, and the bytes that requests with them took; all features are 0 or more."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._rows: dict[tuple[int, ...], Seen] = {}
        self.top: tuple[float, ...] = (0.0,) * width
        """The most of each number that tells the size of any request in the rows."""
        self._weights: list[float] = [0.0] * width
        self._lift = self._middle = 0.0

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, features: Features, taken: int, *, size: Features = ()) -> None:
        """A request with ``features`` took ``taken`` bytes; among requests alike, the most counts.

        ``size``: what tells how large it was, if that is not ``features``.
        """
        size = size or features
        self.top = tuple(map(max, self.top, size))
        kind = tuple(int(_PER_OCTAVE * math.log2(1 + value)) for value in features)
        row = Seen(tuple(features), taken, tuple(size))
        known = self._rows.pop(kind, None)
        if known is not None:
            least, sizes = map(min, known.features, features), map(min, known.size, size)
            row = Seen(tuple(least), max(known.taken, taken), tuple(sizes))
        self._rows[kind] = row
        if len(self._rows) > _MOST_ROWS:
            del self._rows[self._least()]
        self._fit()

    def clear(self) -> None:
        """Forget every row."""
        self._rows.clear()
        self._fit()

    def bytes_for(self, features: Features) -> float:
        """What a request with ``features`` takes: at least what any request with no more of anything took."""
        return self._lift + sum(w * x for w, x in zip(self._weights, features, strict=True))

    def middle_of(self, features: Features, count: int) -> float:
        """What ``count`` requests whose ``features`` have these sums take, in the middle of what was seen."""
        return count * self._middle + sum(w * x for w, x in zip(self._weights, features, strict=True))

    def distance(self, size: Features) -> float:
        """By what factor ``size`` goes beyond the nearest single request that was seen; 1: not at all."""
        apart = (_factor(size, row.size) for row in self._rows.values())
        return max(1.0, min(apart, default=1.0))

    def reach(self, size: Features) -> float:
        """By what factor ``size`` goes beyond the most that was seen, at worst."""
        return _factor(size, self.top)

    @property
    def largest(self) -> float:
        """What the most expensive of the requests that were seen takes."""
        return max((self.bytes_for(row.features) for row in self._rows.values()), default=0.0)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        rows = [[list(row.features), row.taken, list(row.size)] for row in self._rows.values()]
        return {"rows": rows, "top": list(self.top)}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Take in what ``to_dict`` gave. Raises ``KeyError``, ``TypeError`` or ``ValueError`` otherwise."""
        top = self._numbers(saved["top"])
        for features, taken, size in saved["rows"]:
            (most,) = self._numbers([taken], width=1)
            self.add(self._numbers(features), int(most), size=self._numbers(size))
        self.top = tuple(map(max, self.top, top))
        self._fit()

    def _numbers(self, values: Sequence[Any], *, width: int | None = None) -> list[float]:
        numbers = [float(value) for value in values]
        if len(numbers) != (width or self._width) or not all(0 <= number < 1e18 for number in numbers):
            raise ValueError(f"not a measurement: {values!r:.80}")
        return numbers

    def _least(self) -> tuple[int, ...]:
        """The row that another covers by the widest margin; the oldest if none is covered."""

        def spare(kind: tuple[int, ...]) -> float:
            row = self._rows[kind]
            return self.bytes_for(row.features) - row.taken

        return max(list(self._rows)[:-1], key=spare)

    def _fit(self) -> None:
        rows = list(self._rows.values())
        self._weights, self._lift, self._middle = [0.0] * self._width, 0.0, 0.0
        if not rows:
            self.top = (0.0,) * self._width
        scales = [max(1.0, most) for most in self.top]
        columns = [[1.0, *(x / s for x, s in zip(features, scales, strict=True))] for features, *_ in rows]
        if rows:
            found = _nonnegative(columns, [float(row.taken) for row in rows])
            self._weights = [w / s for w, s in zip(found[1:], scales, strict=True)]
            self._middle = found[0]
            self._lift = max(0.0, max(row.taken - self.bytes_for(row.features) for row in rows))


def _factor(features: Features, seen: Features) -> float:
    """The largest of the factors by which ``features`` are above those ``seen``."""
    return max((x / max(t, 1.0) for x, t in zip(features, seen, strict=True)), default=1.0)


def _nonnegative(rows: Sequence[Sequence[float]], targets: Sequence[float]) -> list[float]:
    """Non-negative weights of least squared error, by coordinate descent: features may be dependent."""
    size, count = range(len(rows[0])), len(rows)
    gram = [[sum(r[i] * r[j] for r in rows) / count + _RIDGE * (i == j) for j in size] for i in size]
    moment = [sum(r[i] * t for r, t in zip(rows, targets, strict=True)) / count for i in size]
    weights = [0.0 for _ in size]
    for _ in range(_SWEEPS):
        for i in size:
            others = sum(g * w for g, w in zip(gram[i], weights, strict=True)) - gram[i][i] * weights[i]
            weights[i] = max(0.0, (moment[i] - others) / gram[i][i])
    return weights
