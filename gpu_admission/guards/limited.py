"""What guards and measurements need of a ledger: how full it is, and a way to limit it."""

from __future__ import annotations

from typing import Protocol

from gpu_admission.guards.verdict import Verdict
from gpu_admission.runtime.turn import Turn


class Limited(Protocol):
    """The ledger that limits are put on: in a ``with`` block one change at a time."""

    turn: Turn

    @property
    def is_given(self) -> bool:
        """Whether other processes gave its capacity in bytes, so that none is measured for it here."""

    def __enter__(self) -> object: ...
    def __exit__(self, *error: object) -> None: ...
    def held(self, device: int) -> tuple[int, int]:
        """What ``device`` has in all, and how much of it leases hold."""
        ...

    def held_here(self, device: int) -> int:
        """How much of the device's capacity this process's leases hold."""

    def taken_by_others(self, device: int) -> int:
        """What leases of other processes really take there, as those processes have measured it."""

    def allow(
        self,
        device: int,
        *,
        capacity: int | None = None,
        ceiling: int | None = None,
        max_running: int | None = None,
        verdict: Verdict | None = None,
    ) -> None:
        """Set what ``device`` may hold, as ``Ledger.allow``; ``verdict`` tells others why."""

    def refuse_all(self) -> None:
        """Refuse everyone who waits in this process."""
