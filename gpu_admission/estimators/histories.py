"""The histories of many routes, and of all of them together: whose is asked, and which is forgotten.

Owns their number, and how a route without a history is judged. What one history concludes is in
``history``; what its shares are shares of is up to ``Learned``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gpu_admission.estimators.history import History

ALL = "*"
"""Key of the history of all routes together, by which a route without its own is judged."""


class Histories:
    """Histories of at most ``most`` routes; the one quiet longest is forgotten. Not thread-safe."""

    def __init__(self, new: Callable[[], History], most: int) -> None:
        self._new = new
        self._most = most
        self._by_route = {ALL: new()}

    @property
    def count(self) -> int:
        """Observations ever made."""
        return self._by_route[ALL].count

    @property
    def routes(self) -> int:
        """Routes that have one of their own."""
        return len(self._by_route) - 1

    def __iter__(self) -> Iterator[History]:
        return iter(self._by_route.values())

    def get(self, route: str) -> History | None:
        """The history of ``route``, where it has one."""
        return self._by_route.get(route)

    def add(self, route: str, estimated: int, share: float) -> None:
        """``route`` took ``share`` of what was ``estimated``."""
        for history in self.of(route):
            history.add(estimated, share)

    def of(self, route: str) -> list[History]:
        """The history of ``route``, which becomes the most recent one, and that of all routes."""
        own = self._by_route.pop(route, None) or self._new()
        self._by_route[route] = own
        while len(self._by_route) > self._most + 1:
            del self._by_route[next(name for name in self._by_route if name != ALL)]
        return [own] if route == ALL else [own, self._by_route[ALL]]

    def size(self, route: str, estimated: int, *, caution: int, margin: float, most: float) -> float:
        """What to charge ``route`` in place of ``estimated``: at most ``most`` times that.

        A route that is not known is judged by all routes, and never charged less than ``estimated``.
        """
        own = self._by_route.get(route)
        history = own or self._by_route[ALL]
        if not history.count:
            return estimated
        size = history.bytes_for(estimated, caution=caution)
        if own is None:
            size = max(estimated, size)
        with_margin = size * (1 + margin)
        return min(most * estimated if size > estimated else estimated, with_margin)

    def doubt(self) -> None:
        """Believe no share below 1 until as many have come again."""
        for history in self:
            history.doubt()

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        return {name: history.to_dict() for name, history in self._by_route.items()}

    def restored(self, saved: object) -> Histories:
        """New ones with what ``to_dict`` gave. Raises ``ValueError`` for anything else."""
        if not isinstance(saved, Mapping):
            raise ValueError("not the saved state of a Learned estimator, version 2")
        made = Histories(self._new, self._most)
        for name, values in saved.items():
            if not isinstance(values, Mapping):
                raise ValueError(f"not a saved history: {values!r:.80}")
            if name == ALL or made.routes < self._most:
                made._by_route.setdefault(name, self._new()).restore(values)
        return made
