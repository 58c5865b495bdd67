"""What a process has said and not yet read back: to be said again when the log lost it.

Owns the process's own numbering, and when it last knew that it still takes part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from gpu_admission.shared.operations import Operation, encode
from gpu_admission.shared.protocol import LogAway

MOST_UNSAID = 20_000


Said: TypeAlias = tuple[bytes, Sequence[int], float]
"""One entry on its way: its bytes, the tickets that it asks for, and when it was sent."""


class Outbox:
    """The entries of one membership after another; ``clock`` must count while the machine sleeps."""

    def __init__(self, process: str, clock: Callable[[], float]) -> None:
        self.process = process
        self.member = ""
        """The name of this membership; a new one for each."""
        self.confirmed = -math.inf
        """When the latest entry was sent of those that have come back."""
        self._clock = clock
        self._memberships = 0
        self._serial = 0
        self._said: dict[int, Said] = {}

    def __len__(self) -> int:
        return len(self._said)

    def enter(self) -> str:
        """Begin a new membership: what was said in the old one is void."""
        self._memberships += 1
        self._serial = 0
        self._said.clear()
        self.member = f"{self.process}.{self._memberships}"
        return self.member

    def say(self, *operations: Operation, asks: Sequence[int] = ()) -> bytes:
        """The next entry's bytes. Raises ``LogAway`` when too many have not come back."""
        if len(self._said) >= MOST_UNSAID:
            raise LogAway(f"{MOST_UNSAID} operations on the shared budget have not come back")
        self._serial += 1
        data = encode(self.member, self._serial, *operations)
        self._said[self._serial] = (data, asks, self._clock())
        return data

    def came_back(self, serial: int) -> Sequence[int]:
        """The ``serial``-th was read in the log. Returns the tickets that it had asked for."""
        said = self._said.pop(serial, None)
        if said is None:
            return ()
        _, asks, sent = said
        if sent > self.confirmed:
            self.confirmed = sent
        return asks

    def again(self, last: int) -> list[bytes]:
        """What to append again, where the log has this membership's entries up to ``last``."""
        now = self._clock()
        for serial in [serial for serial in self._said if serial <= last]:
            del self._said[serial]
        self._said = {serial: (data, asks, now) for serial, (data, asks, _) in self._said.items()}
        return [data for data, _, _ in self._said.values()]
