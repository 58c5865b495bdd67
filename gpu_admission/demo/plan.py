"""What the demo is asked to do: which rounds, of what, and for how long.

Owns the names. Imports nothing that takes long, so that the command says its first line at once.
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from gpu_admission.demo.protect import Protection
from gpu_admission.demo.server import EngineName, Settings
from gpu_admission.demo.shape import Shape

Round = Literal["unprotected", "semaphore", "bytes", "workers"]
ROUNDS: tuple[Round, ...] = get_args(Round)
"""In the order in which they are run."""
USUAL: tuple[Round, ...] = ("unprotected", "semaphore", "bytes")
"""What ``make demo`` shows, in three minutes."""
Role = Literal["unprotected", "semaphore", "bytes", "divided", "one budget"]
"""A replay: most rounds have one; "workers" has two that are compared."""
REPLAYS: dict[Round, tuple[Role, ...]] = {
    "unprotected": ("unprotected",),
    "semaphore": ("semaphore",),
    "bytes": ("bytes",),
    "workers": ("divided", "one budget"),
}
MEASURING, REPLAYING = 25, 47
"""Seconds that are allowed for what is measured before, and for each replay, by default."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What the command was asked to do. ``seconds`` bound the whole; 0: what its rounds need."""

    rounds: tuple[Round, ...] = USUAL
    requests: int = 160
    clients: int = 48
    workers: int = 4
    room: int = 36 * 2**20
    engine: EngineName = "batch"
    seconds: float = 0.0
    shape: Shape = Shape()

    @property
    def replays(self) -> int:
        """How often the trace is replayed."""
        return sum(len(REPLAYS[name]) for name in self.rounds)

    @property
    def limit(self) -> float:
        """Seconds for everything together."""
        return self.seconds or MEASURING + REPLAYING * self.replays

    def settings(self, protection: Protection, room: int | None = None) -> Settings:
        return Settings(
            engine=self.engine,
            protection=protection,
            room=room or Settings().room,
            most=self.clients,
            shape=self.shape,
        )
