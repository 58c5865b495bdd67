"""Which device takes a request that fits on several. One small function a policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

Placement: TypeAlias = Callable[[int, Sequence[int], int], int | None]
"""``(bytes, free bytes of each device, grants so far) -> index``, or ``None`` when none fits."""


def most_free(size: int, free: Sequence[int], turn: int) -> int | None:
    """The device with the most bytes free: keeps loads level."""
    best = max(free)
    return free.index(best) if best >= size else None


def best_fit(size: int, free: Sequence[int], turn: int) -> int | None:
    """The device that is left with the least: keeps room for large ones."""
    fitting = [(left, index) for index, left in enumerate(free) if left >= size]
    return min(fitting)[1] if fitting else None


def round_robin(size: int, free: Sequence[int], turn: int) -> int | None:
    """Devices in turn, skipping those where it does not fit."""
    for step in range(len(free)):
        index = (turn + step) % len(free)
        if free[index] >= size:
            return index
    return None


POLICIES: dict[str, Placement] = {"most_free": most_free, "best_fit": best_fit, "round_robin": round_robin}
