"""The calls that wait in a batcher: which batch closes next, when, and why.

Synchronous and without a clock: time is an argument. Calls of different keys stand in groups
of their own and never share a batch. Running a batch is for ``batcher``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from itertools import islice

import anyio

from gpu_admission.serving.call import Call, ClosedBy
from gpu_admission.serving.packing import Limits, pack

LOOK_AT = 4
"""A batch is chosen among the oldest calls, this many times the rows of one: more would only cost time."""


class Group:
    """Calls that may share a batch, by arrival."""

    __slots__ = ("_dearest", "calls", "rows")

    def __init__(self) -> None:
        self.calls: OrderedDict[int, Call] = OrderedDict()
        self.rows = 0
        self._dearest: int | None = 0

    @property
    def head(self) -> Call:
        return next(iter(self.calls.values()))

    def add(self, call: Call) -> None:
        self.calls[call.number] = call
        self.rows += call.rows
        if self._dearest is not None:
            self._dearest = max(self._dearest, call.price)

    def remove(self, call: Call) -> None:
        del self.calls[call.number]
        self.rows -= call.rows
        if call.price == self._dearest:
            # Looked for when it is next asked: a whole batch leaves at a time.
            self._dearest = None

    @property
    def dearest(self) -> int:
        """Bytes of the dearest row."""
        if self._dearest is None:
            self._dearest = max((call.price for call in self.calls.values()), default=0)
        return self._dearest

    def full(self, limits: Limits) -> ClosedBy | None:
        """Why no new call could make its next batch longer; ``None`` while one could."""
        if self.rows >= limits.rows:
            return "items"
        return "bytes" if self.rows * self.dearest > limits.bytes else None


class Line:
    """Calls in order of arrival, and the batches that come of them.

    ``forming`` is set to wake the task that waits to close the next batch; ``batches`` counts
    tasks that form or run one.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._groups: dict[Hashable, Group] = {}
        self._numbers = 0
        self.waiting = 0
        self.batches = 0
        self.forming: anyio.Event | None = None

    def add(self, call: Call) -> None:
        self._numbers += 1
        call.number = self._numbers
        group = self._groups.get(call.key)
        if group is None:
            group = self._groups[call.key] = Group()
        group.add(call)
        self.waiting += 1
        if group.full(self._limits):
            self.wake()

    def remove(self, call: Call) -> bool:
        """Take ``call`` out, if it still waits."""
        group = self._groups.get(call.key)
        if group is None or group.calls.get(call.number) is not call:
            return False
        group.remove(call)
        self.waiting -= 1
        if not group.calls:
            del self._groups[call.key]
        if not self.waiting:
            self.wake()
        return True

    def clear(self) -> list[Call]:
        """Take everyone out."""
        calls = [call for group in self._groups.values() for call in group.calls.values()]
        for call in calls:
            self.remove(call)
        return calls

    def wake(self) -> None:
        """Have the task that forms a batch look again."""
        if self.forming is not None:
            self.forming.set()

    def close(
        self, now: float, patience: float, *, hurry: ClosedBy | None
    ) -> tuple[list[Call], ClosedBy] | None:
        """The batch that closes now, taken out, and why; ``None`` while company may come.

        Company may come for ``patience`` seconds from the batch's first call on. If several close, the
        one with the oldest first call is taken. ``hurry``: every batch closes.
        """
        ready = [
            (group.head.number, group, why)
            for group in self._groups.values()
            if (why := self._why(group, now - patience, hurry)) is not None
        ]
        if not ready:
            return None
        _, group, why = min(ready, key=lambda each: each[0])
        chosen = pack(list(islice(group.calls.values(), LOOK_AT * self._limits.rows)), self._limits)
        for call in chosen:
            self.remove(call)
        return chosen, why

    def _why(self, group: Group, since: float, hurry: ClosedBy | None) -> ClosedBy | None:
        if why := group.full(self._limits):
            return why
        return hurry or ("max_wait" if group.head.at <= since else None)

    def oldest(self) -> float:
        """When the oldest of all calls came."""
        return min(group.head.at for group in self._groups.values())
