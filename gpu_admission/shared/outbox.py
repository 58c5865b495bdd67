"""What a process has said but not yet read back: to be said again if the log loses it.

Owns the process's own numbering, and when it last knew that it still takes part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from gpu_admission.shared.operations import Operation, encode, encode_short
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
        self.has_dropped = False
        """Something was not said, for want of room: the next membership declares what holds by then."""
        self._clock = clock
        self._key = b""
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
        self.has_dropped = False
        self.member = f"{self.process}.{self._memberships}"
        self._key = self.member.encode()
        return self.member

    def say(self, *operations: Operation, asks: Sequence[int] = ()) -> bytes:
        """The next entry's bytes. Raises ``LogAway`` when too many have not come back."""
        serial = self._next()
        data = encode(self.member, serial, *operations)
        self._serial, self._said[serial] = serial, (data, asks, self._clock())
        return data

    def say_short(self, ended: int, number: int, size: int, lane: int) -> bytes:
        """The same for the end of one ticket and the ask for another, without a flow; 0 for none."""
        serial = self._next()
        data = encode_short(self._key, serial, ended, number, size, lane)
        self._serial, self._said[serial] = serial, (data, (number,) if number else (), self._clock())
        return data

    def _next(self) -> int:
        if len(self._said) >= MOST_UNSAID:
            raise LogAway(
                f"{MOST_UNSAID} operations on the shared budget have not come back: see that what shared= "
                "names can be reached; until then this process starts nothing"
            )
        return self._serial + 1

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
