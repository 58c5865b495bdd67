"""One reading thread computes at a time, the one with the smallest body first.

Threads that compute compete with the event loop for the interpreter: the loop would get it only
every third or fourth time, tens of milliseconds late. Owns whose turn it is. Which bodies are read
at all, and when, is up to ``large``.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 0.25
"""Seconds to wait for a thread that does not give way (it may be waiting for a network) before going on."""


class _Waiting:
    __slots__ = ("gone", "turn")

    def __init__(self) -> None:
        self.turn = threading.Event()
        self.gone = False


class Pace:
    """The turns of the reading threads of one event loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy = False
        self._line: list[tuple[int, int, _Waiting]] = []
        self._arrivals = itertools.count()

    def run(self, read: Callable[[], T], size: int) -> T:
        """``read()``, in turns with others. ``size``: bytes of its body."""
        step = _Step(self, size)
        _step.set(step)
        step.has_turn = self.enter(size)
        try:
            return read()
        finally:
            if step.has_turn:
                self.leave()

    def enter(self, size: int) -> bool:
        """Wait for a turn; whether there was one within ``PATIENCE``."""
        with self._lock:
            if not self._busy:
                self._busy = True
                return True
            waiting = _Waiting()
            heapq.heappush(self._line, (size, next(self._arrivals), waiting))
        if waiting.turn.wait(PATIENCE):
            return True
        with self._lock:
            waiting.gone = not waiting.turn.is_set()
            return waiting.turn.is_set()

    def leave(self) -> None:
        """The turn goes to the next."""
        with self._lock:
            while self._line:
                waiting = heapq.heappop(self._line)[2]
                if not waiting.gone:
                    waiting.turn.set()
                    return
            self._busy = False

    def is_asked_for(self, size: int) -> bool:
        """Whether a smaller body than one of ``size`` bytes waits for a turn."""
        try:
            return self._line[0][0] < size
        except IndexError:
            return False


class _Step:
    """One thread's reading, and whether it has the turn."""

    __slots__ = ("_pace", "_size", "has_turn")

    def __init__(self, pace: Pace, size: int) -> None:
        self._pace = pace
        self._size = size
        self.has_turn = False

    def give_way(self) -> None:
        if self.has_turn and self._pace.is_asked_for(self._size):
            self._pace.leave()
            self.has_turn = self._pace.enter(self._size)


_step: ContextVar[_Step | None] = ContextVar("gpu_admission.reading_step", default=None)


def give_way() -> None:
    """Let a smaller body be read first, where one waits. For loops over pieces of a large one."""
    step = _step.get()
    if step is not None:
        step.give_way()
