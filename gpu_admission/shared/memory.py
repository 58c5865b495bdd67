"""A log in this process's memory: for tests, and to say what a log is without any I/O.

A ``MemoryHub`` stands for the place (a folder, a server), each ``MemoryLog`` for one
process's way to it. Time, delays, cuts and losses are by hand.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection

from gpu_admission.shared.operations import Open, encode
from gpu_admission.shared.protocol import Entry, Listener


class MemoryHub:
    """The entries and their clock. ``instant=False``: nothing arrives until ``deliver``."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = lambda: 0.0,
        instant: bool = True,
        knows_deaths: bool = False,
        settle: float = 10.0,
        long: int = 1 << 62,
    ) -> None:
        self.clock = clock
        self.instant = instant
        self.knows_deaths = knows_deaths
        self.settle = settle
        """Seconds for which a log that replaces a lost one grants nothing."""
        self.long = long
        """With this many entries it begins anew, with a snapshot."""
        self.lock = threading.RLock()
        self.logs: dict[str, MemoryLog] = {}
        self.dead: set[str] = set()
        self.entries: list[Entry] = []
        self.first = 0
        """Place of the first entry that is still there."""
        self.snapshot: bytes | None = None
        self.lineage = 0
        """How often everything was lost."""

    def add(self, data: bytes) -> None:
        at = self.clock()
        if self.entries:
            at = max(at, self.entries[-1].at)
        self.entries.append(Entry(at, data))

    def lose(self) -> None:
        """All that was ever said is gone, as after a flush."""
        with self.lock:
            self.entries, self.first, self.snapshot = [], 0, None
            self.lineage += 1

    def open(self, settle: float, why: str = "") -> None:
        """Begin the log, unless another has begun it."""
        if not self.entries and self.snapshot is None:
            self.add(encode("", 0, Open(settle, not self.knows_deaths, why)))

    @property
    def end(self) -> int:
        return self.first + len(self.entries)


_CUT = "the memory log was cut off"


class MemoryLog:
    """One process's way to a ``MemoryHub``."""

    is_immediate = False
    lifeline = None

    def __init__(self, hub: MemoryHub) -> None:
        self.hub = hub
        self.where = "memory"
        self.knows_deaths = hub.knows_deaths
        self.is_cut = False
        """Set before ``start``, the way was cut when the process began."""
        self.unsent: list[bytes] = []
        """What was appended while the way was cut: lost, as in a closed connection."""
        self.woken = threading.Event()

    def start(self, process: str, listener: Listener) -> None:
        self.process, self.listener = process, listener
        if self.is_cut:
            listener.went_away(_CUT)
        else:
            self._start()

    def _start(self) -> None:
        with self.hub.lock:
            self.hub.logs[self.process] = self
            self.hub.open(0.0)
            self._begin()
            self.deliver()
        self.listener.came_back()

    def _begin(self) -> None:
        self.place, self.lineage = self.hub.first, self.hub.lineage
        self.listener.restarted(self.hub.snapshot)

    def append(self, data: bytes) -> None:
        if self.is_cut:
            self.unsent.append(data)
            return
        self._reopen_if_lost()
        with self.hub.lock:
            self.hub.add(data)
        if self.hub.instant:
            self.deliver()

    def _reopen_if_lost(self) -> None:
        if self.lineage != self.hub.lineage:
            with self.hub.lock:
                self.hub.open(self.hub.settle, "the log was lost")
            self._read_anew()

    def _read_anew(self) -> None:
        self._begin()
        self.deliver()
        self.listener.came_back()

    def catch_up(self) -> bool:
        if not self.hub.instant or self.is_cut:
            return False
        self._reopen_if_lost()
        self.deliver()
        return True

    def deliver(self, most: int = 1 << 62) -> int:
        """Report up to ``most`` entries that are there; returns how many."""
        if self.place < self.hub.first:
            self._read_anew()
        with self.hub.lock:
            start = self.place - self.hub.first
            entries = self.hub.entries[start : start + most]
            self.place += len(entries)
        if entries:  # without the hub's lock: the listener takes its own, which one that appends has already
            self.listener.received(entries)
        if len(self.hub.entries) >= self.hub.long:
            self._compact()
        return len(entries)

    def _compact(self) -> None:
        snapshot = self.listener.snapshot()
        with self.hub.lock:
            if self.place == self.hub.end:
                self.hub.snapshot = snapshot
                last = self.hub.entries[-1]
                self.hub.first, self.hub.entries = self.hub.end, []
                self.hub.entries.append(Entry(last.at, b""))  # keeps the clock from going back

    def cut(self) -> None:
        self.is_cut = True
        self.listener.went_away(_CUT)

    def mend(self) -> None:
        self.is_cut = False
        self.unsent.clear()
        if self.process not in self.hub.logs:
            self._start()
            return
        self._reopen_if_lost()
        self.deliver()
        self.listener.came_back()

    def wake(self, processes: Collection[str]) -> None:
        for process in processes:
            if process in self.hub.logs:
                self.hub.logs[process].woken.set()

    def wait(self, seconds: float) -> None:
        self.woken.wait(seconds)
        self.woken.clear()

    def is_alive(self, process: str) -> bool | None:
        return process not in self.hub.dead if self.hub.knows_deaths else None

    def stop(self) -> None:
        self.hub.logs.pop(self.process, None)
        self.woken.set()
