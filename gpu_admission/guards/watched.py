"""One device under watch: its own copy of each guard, and how they are asked.

Owns what came of them last, and that a guard that fails, or wants something slow called,
holds up nobody. When they are asked, and what follows, are the monitor's.
"""

from __future__ import annotations

import copy
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from gpu_admission.devices.capacity import Capacity
from gpu_admission.guards.device import DeviceGuard
from gpu_admission.guards.verdict import Verdict, limit_of, together, verdict_of
from gpu_admission.runtime.failure import log_failure
from gpu_admission.types import Device, DeviceReading, Guard, Outcome

logger = logging.getLogger("gpu_admission")
_REMEMBERED = 1024
Kind: TypeAlias = Literal["ok", "error", "oom", "fault", "client"]
End: TypeAlias = tuple[Kind, int, str, float]
"""The fields of an ``Outcome``, which is built from them when guards are asked."""


class Watched:
    """One device, its own copy of each guard, and what came of them last."""

    def __init__(self, device: Device, guards: Sequence[Guard]) -> None:
        self.device = device
        self.guards = [_copy(guard) for guard in guards]
        self.verdict = Verdict()
        self.told = Verdict()
        """What the log was told last."""
        self.outcomes: deque[End] = deque(maxlen=_REMEMBERED)
        """Outcomes that the guards have not seen yet."""
        self.begun = False
        """Its capacity is known, and its guards are asked."""
        self.measured: Capacity | None = None
        """The capacity as measured at the start; ``None``: it was given in bytes."""
        self.failure = ""
        """Why its capacity can't be measured."""
        self.failing: set[str] = set()
        """Names of guards that raise at present."""

    def take_outcomes(self) -> list[Outcome]:
        """Take the outcomes that no guard has seen; others may be added meanwhile."""
        return [Outcome(*self.outcomes.popleft()) for _ in range(len(self.outcomes))]

    def begin(self, measured: Capacity | None, overcommit: float) -> None:
        self.begun = True
        self.measured = measured
        self.failure = ""
        for guard in self.guards:
            try:
                if isinstance(guard, DeviceGuard):
                    guard.begin(measured, overcommit=overcommit)
            except Exception as error:
                log_failure(f"guard {guard.name!r} failed to begin", error, "it is asked all the same")

    def ask(
        self,
        latest: Sequence[DeviceReading],
        blank: DeviceReading,
        outcomes: Sequence[Outcome],
        now: float,
    ) -> Verdict:
        """What the guards say by the ``latest`` readings; before the first, by the ``blank`` one.

        ``blank`` has only what is known without the device, and guards that need a device skip it.
        """
        return together(
            [self._ask_one(guard, latest or _before(guard, blank), outcomes, now) for guard in self.guards]
        )

    def _ask_one(
        self, guard: Guard, readings: Sequence[DeviceReading], outcomes: Sequence[Outcome], now: float
    ) -> Verdict:
        """What ``guard`` says; one that raises is ignored, and logged once, until it works again."""
        try:
            limit = limit_of(guard, readings, outcomes, now)
            verdict = verdict_of(guard.name, limit)
        except Exception as error:
            if guard.name not in self.failing:
                self.failing.add(guard.name)
                log_failure(f"guard {guard.name!r} failed", error, "it has no say until it works again")
            return Verdict()
        self.failing.discard(guard.name)
        if limit.action is not None:
            _act(limit.action, guard.name)
        return verdict


def _copy(guard: Guard) -> Guard:
    try:
        return copy.deepcopy(guard)
    except Exception as error:
        raise TypeError(
            f"guards: {guard.name!r} can't be copied for each device ({error}): give it a __deepcopy__"
        ) from error


def _before(guard: Guard, blank: DeviceReading) -> Sequence[DeviceReading]:
    return () if isinstance(guard, DeviceGuard) else (blank,)


def _act(action: Callable[[], object], name: str) -> None:
    """Call a guard's ``action`` in a thread of its own: it may be slow."""
    threading.Thread(target=_call, args=(action, name), name="gpu-admission-action", daemon=True).start()


def _call(action: Callable[[], object], name: str) -> None:
    try:
        action()
    except Exception:
        logger.exception("the action of guard %r failed", name)
