"""One run of a batcher's handler, as it is told to observers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpu_admission.serving.call import BatchEvent, Call, ClosedBy, Ending
from gpu_admission.serving.packing import padded, padding_share


class Run:
    """One call of the handler."""

    __slots__ = ("at", "calls", "closed_by", "device", "leases", "outcome", "rows", "size")

    def __init__(self, calls: Sequence[Call], closed_by: ClosedBy, at: float) -> None:
        self.calls = calls
        self.closed_by = closed_by
        self.at = at
        self.leases = {call.lease for call in calls if call.lease is not None}
        """The leases of its callers."""
        self.rows = sum(call.rows for call in calls)
        self.size = padded(calls)
        self.device: str | None = None
        self.outcome: Ending = "client"

    def hand_out(self, results: Sequence[Any]) -> None:
        """Give each caller the entry for its item: a result, or an exception among the results."""
        for call, result in zip(self.calls, results, strict=True):
            if isinstance(result, Exception):
                call.fail(result)
            else:
                call.succeed(result)

    def event(self, batcher: str, now: float) -> BatchEvent:
        return BatchEvent(
            batcher=batcher,
            items=len(self.calls),
            rows=self.rows,
            bytes=self.size,
            padding=padding_share(self.calls),
            closed_by=self.closed_by,
            waited=self.at - min(call.at for call in self.calls),
            device=self.device,
            seconds=now - self.at,
            outcome=self.outcome,
        )
