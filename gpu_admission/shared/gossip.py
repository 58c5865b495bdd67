"""What a process says with each beat: what it holds, and what its estimators have learned.

Owns the bytes of what was learned, and keeps them few: only the newest records, if there are many.
They change nothing that is granted, and what is lost is learned again.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeAlias

import msgspec

from gpu_admission.shared.operations import MOST_TOLD, Beat

_MOST_RECORDS = 64
Record: TypeAlias = tuple[Any, ...]
"""Plain values."""
Use: TypeAlias = Callable[[], tuple[Sequence[int], Sequence[int]]]
"""For each device, the bytes that a process holds besides its leases, and what those take."""


class _Told(msgspec.Struct, array_like=True, frozen=True):
    who: Annotated[bytes, msgspec.Meta(max_length=16)]
    records: list[Record]


_decode = msgspec.msgpack.Decoder(_Told).decode


class Gossip:
    """``use()`` as ``SharedLedger`` asks for it, records for others, and ``hear``, called with theirs.

    ``say`` takes no lock: it may be called in the middle of anything.
    """

    def __init__(self, use: Use, hear: Callable[[Record], object] = lambda record: None) -> None:
        self._use = use
        self._hear = hear
        self._who = os.urandom(8)
        self._said: deque[Record] = deque(maxlen=_MOST_RECORDS)

    def __call__(self) -> tuple[Sequence[int], Sequence[int]]:
        return self._use()

    def say(self, record: Record) -> None:
        """Tell the others, with the next beat."""
        self._said.append(record)

    def beat(self) -> Beat:
        """All that there is to say now; each record is said only once."""
        resident, taken = self._use()
        records = []
        while self._said:
            records.append(self._said.popleft())
        told = msgspec.msgpack.encode(_Told(self._who, records)) if records else b""
        return Beat(tuple(resident), tuple(taken), told if len(told) <= MOST_TOLD else b"")

    def take_in(self, told: bytes) -> None:
        """Hear what a process has told, unless it is this one. Raises nothing, whatever it is."""
        try:
            said = _decode(told)
        except (msgspec.MsgspecError, RecursionError):
            return
        if said.who != self._who:
            for record in said.records[:_MOST_RECORDS]:
                self._hear(record)
