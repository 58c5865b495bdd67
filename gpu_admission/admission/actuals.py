"""What requests took beside what they were charged, summed up by route: for refusals and the report.

Owns the sums and their words. What one request took is found out in ``feedback``; what estimators
make of it is theirs.
"""

from __future__ import annotations

import msgspec

_MOST_ROUTES = 64
_ENOUGH = 20
"""Requests that a share needs: of fewer it would tell of single ones."""
_LONG = 1024
"""Requests after which older ones count half."""


class Actual(msgspec.Struct, frozen=True):
    """One route: how many requests are known, and the bytes that they were charged and took."""

    route: str
    requests: int
    estimated: int
    actual: int

    @property
    def share(self) -> float:
        return self.actual / max(1, self.estimated)

    def __str__(self) -> str:
        return f"actual {self.route}: {self.share:.0%} of the estimate, by the last {self.requests} known"


class Actuals:
    """The sums of one admission. Not thread-safe: it is used in the budget's turn."""

    def __init__(self) -> None:
        self._of: dict[str, Actual] = {}

    def note(self, route: str, estimated: int, actual: int) -> None:
        """A request of ``route`` was charged ``estimated`` bytes and took ``actual``.

        Of ever new routes, only the first 64 are kept.
        """
        old = self._of.get(route)
        if old is None:
            if len(self._of) >= _MOST_ROUTES:
                return
            old = Actual(route, 0, 0, 0)
        elif old.requests >= _LONG:
            old = Actual(route, old.requests // 2, old.estimated // 2, old.actual // 2)
        self._of[route] = Actual(route, old.requests + 1, old.estimated + estimated, old.actual + actual)

    def of(self, route: str) -> Actual | None:
        """What is known of ``route``, once that is enough."""
        known = self._of.get(route)
        return known if known is not None and known.requests >= _ENOUGH else None

    def all(self) -> tuple[Actual, ...]:
        """The same of all routes."""
        return tuple(known for known in list(self._of.values()) if known.requests >= _ENOUGH)
