"""What a log must be able to do, so that ledgers in many processes stay equal.

Owns the two sides of that contract and no behaviour. A log orders entries and stamps them;
what an entry means is ``operations``' business, and what is done about it the replica's.
``gpu_admission.testing`` says the same as checks, for any log: ``check_log`` and ``check_same_grants``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol


class LogAway(Exception):
    """The log can't be reached just now, and why."""


class Entry(NamedTuple):
    """One entry of a log, as every process reads it."""

    at: float
    """Seconds of the log's own clock, never below those of the entry before."""
    data: bytes


class Listener(Protocol):
    """What a log reports to, from any thread, one call at a time, in the log's order."""

    def received(self, entries: Sequence[Entry]) -> None:
        """The next entries, this process's own among them."""

    def restarted(self, snapshot: bytes | None) -> None:
        """Forget everything. The entries to come continue ``snapshot``, or are all there are.

        Until ``came_back`` they are history: nothing is concluded from what isn't there yet.
        """

    def snapshot(self) -> bytes:
        """Its whole state after what was received so far: a log that has become long begins with it anew."""
        ...

    def went_away(self, why: str) -> None:
        """Nothing arrives and nothing can be appended; what was not received yet may be lost."""

    def came_back(self) -> None:
        """All that is in the log has been received: append again what has not come back."""


class Log(Protocol):
    """One order of entries for all processes that use a budget."""

    where: str
    """Its name for people, in messages; without a password."""
    is_immediate: bool
    """Whether an entry has come back when ``append`` returns. Writing it is then the process's own
    work, and what may be said a moment later is said with the next entry."""
    knows_deaths: bool
    """Whether ``is_alive`` is certain, so that no time limit has to decide."""

    @property
    def lifeline(self) -> int | None:
        """A file descriptor: while any process has it open, this one counts as alive; ``None``: none does."""
        ...

    def start(self, process: str, listener: Listener) -> None:
        """Begin to report: first ``restarted``, all there is and ``came_back``, then whatever comes.

        Makes the log where there is none. One that can't be reached is reported by
        ``went_away``. Raises ``ValueError`` for a place that can't be used.
        """

    def append(self, data: bytes) -> None:
        """Add an entry; it comes back through ``received``, perhaps before this returns."""

    def catch_up(self) -> bool:
        """Report what is there already, where that takes no waiting; whether that was all there is."""

    def wake(self, processes: Collection[str]) -> None:
        """Have these processes ``catch_up`` soon, where the log doesn't see to it anyway."""

    def wait(self, seconds: float) -> None:
        """Return when this process was woken, or after ``seconds``. For one thread only."""

    def is_alive(self, process: str) -> bool | None:
        """Whether it still runs; ``None`` where the log can't know."""

    def stop(self) -> None:
        """Report no more, and let go of everything."""
