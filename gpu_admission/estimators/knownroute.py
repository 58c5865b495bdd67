"""What is known of one route and model from measurements, and the charge that follows from it.

Owns the margin. The fit is in ``envelope``, who runs alone in ``claims``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from gpu_admission.estimators.claims import Claims
from gpu_admission.estimators.envelope import Envelope
from gpu_admission.estimators.numbers import FEATURES, Row

ENOUGH = 40
"""With this many requests that went well, a route counts as learned."""
BEYOND = 1.25
"""A request this many times above all that was seen counts as a new size."""
_FIRST = 3
_GENEROUS = 1.5
_LEAST_MARGIN, _FIRST_MARGIN, _UNLIKE_MARGIN = 0.05, 0.5, 0.25


class Compared(NamedTuple):
    """A request beside those that were seen of its route."""

    features: Row
    reach: Row
    beyond: float
    """By what factor ``reach`` goes beyond the most that was seen, at worst."""


class KnownRoute:
    """What is known of one route and model."""

    def __init__(self) -> None:
        self.fit = Envelope(len(FEATURES))
        self.claims = Claims()
        self.good = 0
        """Requests that ended well."""
        self.runs = 0
        """How many of these were measured."""
        self.grows = False
        """Whether one that was measured may have been at its peak near its end."""
        self._warms_up = False

    @property
    def needs_run(self) -> bool:
        """Whether one has to be measured whatever its size: the first three."""
        return self.runs < _FIRST

    def compare(self, features: Row, reach: Row) -> Compared:
        """A request that is expected to use ``features``; ``reach`` tells how large it is."""
        return Compared(features, reach, self.fit.reach(reach))

    def size(self, request: Compared) -> float:
        """What ``request`` is charged: generously if it goes beyond all that was ever seen."""
        size = self.fit.bytes_for(request.features) * (1 + self._margin(request.reach))
        if request.beyond <= BEYOND:
            return size * max(1.0, request.beyond)
        return _GENEROUS * request.beyond * max(size, self.fit.bytes_for(self.fit.top))

    def learn(self, features: Row, reach: Row, peak: int | None, *, is_exact: bool, grows: bool) -> None:
        """One more request ended well; ``peak`` where it was measured."""
        self.good += 1
        if peak is None:
            return
        if self._warms_up:
            # The very first run sets things up for good, and no later one does: drop its row.
            self.fit.clear()
        self._warms_up = is_exact and not self.runs
        self.runs += 1
        self.grows = self.grows or grows
        self.fit.add(features, max(1, peak), size=reach)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        return {"fit": self.fit.to_dict(), "good": self.good, "runs": self.runs, "grows": self.grows}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> KnownRoute:
        """From what ``to_dict`` gave. Raises ``KeyError``, ``TypeError`` or ``ValueError`` otherwise."""
        made = cls()
        made.fit.restore(saved["fit"])
        made.good, made.runs, made.grows = int(saved["good"]), int(saved["runs"]), bool(saved["grows"])
        return made

    def _margin(self, reach: Row) -> float:
        """Smaller with evidence, and larger the less a single measured request resembles this one."""
        evidence = self.runs + self.good / 4 if self.good else 1.0
        unlike = (self.fit.distance(reach) - 1) / 4
        return max(_LEAST_MARGIN, _FIRST_MARGIN / max(1.0, evidence), min(_UNLIKE_MARGIN, unlike))
