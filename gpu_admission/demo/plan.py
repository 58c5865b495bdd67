"""What the demo is asked to do: which rounds, of what, and for how long.

Owns the names. Imports nothing that takes long, so that the command says its first line at once.
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from gpu_admission.demo.protect import Protection
from gpu_admission.demo.server import EngineName, Settings
from gpu_admission.demo.shape import Shape

Round = Literal["unprotected", "semaphore", "bytes", "auto", "workers", "learned"]
ROUNDS: tuple[Round, ...] = get_args(Round)
"""In the order in which they are run."""
USUAL: tuple[Round, ...] = ("unprotected", "semaphore", "bytes")
"""What ``make demo`` shows, in three minutes."""
Role = Literal[
    "unprotected", "semaphore", "bytes", "auto", "divided", "one budget", "asked", "learning", "learned"
]
"""A replay: most rounds have one, some have several that are compared."""
REPLAYS: dict[Round, tuple[Role, ...]] = {
    "unprotected": ("unprotected",),
    "semaphore": ("semaphore",),
    "bytes": ("bytes",),
    "auto": ("auto",),
    "workers": ("divided", "one budget"),
    "learned": ("asked", "learning", "learned"),
}
MEASURING, REPLAYING, LEARNING = 25, 47, 110
"""Seconds allowed by default: for what is measured before, for each replay, and for each of "learned"."""


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
        learning = len(REPLAYS["learned"]) if "learned" in self.rounds else 0
        more = (LEARNING - REPLAYING) * learning + MEASURING * bool(learning)
        return self.seconds or MEASURING + REPLAYING * self.replays + more

    def settings(self, protection: Protection, room: int | None = None, page: int = 0) -> Settings:
        return Settings(
            engine=self.engine,
            protection=protection,
            room=room or Settings().room,
            most=self.clients,
            page=page,
            shape=self.shape,
        )
