"""An event loop whose clock jumps: nothing is waited for, so minutes of a simulation take a moment.

Owns the clock, also of an admission that runs in it. Nothing that reads a socket can run here.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar
from unittest import mock

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """Where nothing is left to do now, it is at once the time of what is due next."""

    def __init__(self) -> None:
        super().__init__(_Jumps(self))
        self.now = 0.0

    def time(self) -> float:
        return self.now


class _Jumps(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("everybody waits for ever")
        self._loop.now += max(timeout, 0.0)
        return super().select(0)


def run(work: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` on a virtual clock, which admissions go by as well."""
    loop = VirtualLoop()
    with (
        asyncio.Runner(loop_factory=lambda: loop) as runner,
        mock.patch("gpu_admission.runtime.clock.monotonic", loop.time),
    ):
        return runner.run(work)
