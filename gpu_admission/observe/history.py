"""The last ten minutes of two numbers, in fixed steps: what was held, and how many waited.

Owns the steps and how a quiet time is filled: what was true after the last change stays
true. It knows no clock; time is an argument.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from gpu_admission.runtime.turn import Turn


class History:
    """The most of each number in each of ``steps`` steps of ``step`` seconds. Thread-safe."""

    def __init__(self, *, step: float = 5.0, steps: int = 120) -> None:
        self.step = step
        self._steps = steps
        # Reentrant: the garbage collector may end a lease, and so record, while the lock is held.
        self._lock = Turn()
        self._slot: int | None = None
        self._most: deque[tuple[int, int]] = deque(maxlen=steps)
        self._last = (0, 0)

    def record(self, now: float, in_use: int, waiting: int) -> None:
        """These are the numbers from ``now`` on."""
        with self._lock:
            self._advance(int(now // self.step))
            most = self._most[-1]
            self._most[-1] = (max(most[0], in_use), max(most[1], waiting))
            self._last = (in_use, waiting)

    def _advance(self, slot: int) -> None:
        before = slot - 1 if self._slot is None else self._slot
        self._most.extend([self._last] * min(slot - before, self._steps))
        self._slot = max(slot, before)

    def rows(self) -> Sequence[tuple[int, int]]:
        """``(in use, waiting)`` of each step, oldest first, the last one still running."""
        with self._lock:
            return tuple(self._most)
