"""A small inference now and then, so that a broken device is noticed before a client does.

Owns the probe's rhythm and its time limit. What its outcome means is for the guards, which
get it like any other.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, Literal, Protocol, TypeAlias

import anyio
import anyio.to_thread

from gpu_admission.runtime.task import is_async, is_cancelled
from gpu_admission.serving.settings import check_seconds
from gpu_admission.settings.checks import count
from gpu_admission.types import Outcome

Kind: TypeAlias = Literal["ok", "error", "oom", "fault", "client"]
logger = logging.getLogger("gpu_admission")


class Endings(Protocol):
    """What learns how work ends."""

    def classify(self, error: BaseException, /) -> tuple[Kind, str]: ...

    def report_outcome(self, outcome: Outcome, device: int, /) -> object: ...


class Reported(Protocol):
    """The part of an admission that is used here."""

    @property
    def endings(self) -> Endings: ...


class Watchdog:
    """Runs ``probe`` every ``every`` seconds and reports how it ended to ``admission``'s guards.

    ``device`` is the place, in the admission's ``devices``, of the one that it runs on.
    ``probe`` takes no arguments; a plain function runs in a thread, a coroutine function on
    the event loop. One that is not back after ``limit`` seconds counts as an error, and as a
    device fault after ``hung_after`` times in a row: nothing but a restart frees a thread
    that hangs in a driver. It holds no lease, so keep it small::

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(Watchdog(tiny_inference, admission=admission).run)
    """

    def __init__(
        self,
        probe: Callable[[], Any] | Callable[[], Awaitable[Any]],
        *,
        admission: Reported,
        device: int = 0,
        every: float = 30.0,
        limit: float = 30.0,
        hung_after: int = 3,
    ) -> None:
        if not callable(probe):
            raise TypeError(f"probe must be a callable without arguments, not {type(probe).__name__}")
        for setting, seconds in (("every", every), ("limit", limit)):
            check_seconds(setting, seconds)
            if not seconds:
                raise ValueError(f"{setting} must be above 0 seconds")
        count(1)("hung_after", hung_after)
        count(0)("device", device)
        self._probe = probe
        self._admission = admission
        self._device = device
        self._every = every
        self._limit = limit
        self._hung_after = hung_after
        self._hung = 0
        self._in_thread = False
        # One of its own, so that the probe is not late when requests have taken all threads.
        self._thread = anyio.CapacityLimiter(1)

    async def run(self) -> None:
        """Probe until cancelled."""
        while True:
            self._admission.endings.report_outcome(await self.look(), self._device)
            await anyio.sleep(self._every)

    async def look(self) -> Outcome:
        """Run the probe once. Its exception is told by name only, and never raised."""
        if self._in_thread:
            # The last one still hangs: don't spend a second thread on it.
            return self._late()
        try:
            with anyio.move_on_after(self._limit) as scope:
                await self._call()
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            self._hung = 0
            logger.warning("watchdog: the probe failed with %s: %s", type(error).__name__, error)
            return _outcome(*self._admission.endings.classify(error))
        if scope.cancelled_caught:
            return self._late()
        self._hung = 0
        return _outcome("ok")

    async def _call(self) -> None:
        if is_async(self._probe):
            await self._probe()
            return
        claim = threading.Lock()
        try:
            result = await anyio.to_thread.run_sync(
                self._call_sync, claim, abandon_on_cancel=True, limiter=self._thread
            )
        finally:
            # If no thread has taken it up yet, none will: then it is late, but does not hang.
            claim.acquire(blocking=False)
        if result and inspect.isawaitable(result[0]):
            await result[0]

    def _call_sync(self, claim: threading.Lock) -> list[Any]:
        """What the probe returns, in a list: trio takes no awaitable from a thread."""
        if not claim.acquire(blocking=False):
            return []
        self._in_thread = True
        try:
            return [self._probe()]
        finally:
            self._in_thread = False

    def _late(self) -> Outcome:
        self._hung += 1
        logger.warning("watchdog: the probe was not back after %g s (%d in a row)", self._limit, self._hung)
        return _outcome("fault" if self._hung >= self._hung_after else "error", "WatchdogTimeout")


def _outcome(kind: Kind, error: str = "") -> Outcome:
    return Outcome(kind, 0, error, time.monotonic())
