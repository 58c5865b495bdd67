"""Closes a device for good once it has failed in a way that only a restart mends.

Owns what happens then: nothing more, an exit with a code of its own for the monitor, or
the user's callable. Which exceptions are faults: ``classify``; which facts of the driver:
``devices.nvml_faults``.
"""

from __future__ import annotations

import copy
import functools
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from gpu_admission.types import DeviceReading, Limit, Outcome

logger = logging.getLogger("gpu_admission")

EXIT_CODE = 86
"""Exit code of a process under ``on_fault="exit"``."""


class FaultGuard:
    """Closed until restart after a sticky fault: an exception, an Xid, an ECC error.

    ``on_fault``: ``"close"`` refuses everything and fails readiness; ``"exit"`` also ends the
    process with ``exit_code`` after ``grace`` seconds (for answers that are on their way);
    a callable gets the reason, off the event loop.
    """

    name = "fault"

    def __init__(
        self,
        *,
        on_fault: Literal["close", "exit"] | Callable[[str], object] = "close",
        exit_code: int = EXIT_CODE,
        grace: float = 1.0,
    ) -> None:
        if on_fault not in ("close", "exit") and not callable(on_fault):
            raise ValueError(f"on_fault must be 'close', 'exit' or a callable, got {on_fault!r}")
        if not 1 <= exit_code <= 255:
            raise ValueError(f"exit_code must be between 1 and 255, got {exit_code!r}")
        if not grace >= 0:
            raise ValueError(f"grace must be 0 seconds or more, got {grace!r}")
        self._on_fault = on_fault
        self._exit_code = exit_code
        self._grace = grace
        self.reason = ""

    def ceiling(
        self, readings: Sequence[DeviceReading], outcomes: Sequence[Outcome], now: float
    ) -> Limit | None:
        """0 for ever after the first fault; ``None`` before."""
        action: Callable[[], object] | None = None
        if not self.reason:
            self.reason = next(_faults(readings, outcomes), "")
            if not self.reason:
                return None
            logger.critical("device fault: %s; only a restart mends this", self.reason)
            action = self._plan()
        return Limit(bytes=0, reason=self.reason, restart_only=True, action=action)

    def _plan(self) -> Callable[[], object] | None:
        if self._on_fault == "close":
            return None
        if callable(self._on_fault):
            return functools.partial(self._on_fault, self.reason)
        return functools.partial(_exit, self._exit_code, self._grace)

    def __deepcopy__(self, memo: dict[int, Any]) -> FaultGuard:
        """A copy shares its settings (a callable may belong to something big), but not its state."""
        return copy.copy(self)


def _faults(readings: Sequence[DeviceReading], outcomes: Sequence[Outcome]) -> Iterator[str]:
    for outcome in outcomes:
        if outcome.kind == "fault":
            yield f"a request failed with {outcome.error or 'a device fault'}"
    for reading in readings:
        if reading.faults:
            yield f"the driver tells: {', '.join(reading.faults)}"


def _exit(code: int, grace: float) -> None:
    """End the process at once: after such a fault, clean-up that touches the device may hang."""
    logger.critical("exiting with code %d in %g s, for the monitor to start anew", code, grace)
    time.sleep(grace)
    os._exit(code)
