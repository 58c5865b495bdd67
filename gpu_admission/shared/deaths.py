"""Which members have died, where the log can tell.

Owns how that is known and how often it is looked at. What becomes of their bytes is the replica's business.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from gpu_admission.shared.operations import Gone
from gpu_admission.shared.process import process_of
from gpu_admission.shared.protocol import Log


class Deaths:
    """Looks for the dead among members of ``log``."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._looked = -math.inf
        self._unseen: dict[str, float] = {}
        """Members of whom the log can't say whether they live, and since when."""

    def certain(self, members: Collection[str]) -> list[Gone]:
        """Those who have died for certain."""
        return [Gone(name, certain=True) for name in members if self._lives(name) is False]

    def look(self, members: Collection[str], now: float, ttl: float, pause: float) -> Sequence[Gone]:
        """The dead, and those of whom nothing was seen for ``ttl``; none within ``pause`` of the last look.

        Files that were removed by hand are made again by whoever lives.
        """
        if not self._log.knows_deaths or 0 <= now - self._looked < pause:
            return ()
        self._looked = now
        lives = {name: self._lives(name) for name in members}
        self._unseen = {name: self._unseen.get(name, now) for name in members if lives[name] is None}
        missing = [name for name, since in self._unseen.items() if now - since > ttl]
        dead = [name for name in members if lives[name] is False]
        return [Gone(name, certain=name in dead) for name in (*dead, *missing)]

    def _lives(self, member: str) -> bool | None:
        return self._log.is_alive(process_of(member))
