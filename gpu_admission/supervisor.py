"""An admission's devices and guards: what was measured, and what is safe now, as limits on its ledger.

Owns the capacity that is measured at start, the readings loop, and each device's own copy
of each guard. The limits are applied through ``apply``; who may start under them is decided
in the ledger. Nothing here runs while requests are served, but for a note of how each ended.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from gpu_admission.errors import Unavailable
from gpu_admission.settings import Settings
from gpu_admission.types import Device, DeviceReading, Guard, Outcome

if TYPE_CHECKING:
    from gpu_admission.devices import Capacity, Readings

logger = logging.getLogger("gpu_admission")
_RETRY_MEASURING = 5.0


class Verdict(msgspec.Struct, frozen=True):
    """What the guards of one device say together: the lowest ceiling wins."""

    ceiling: int | None = None
    """Bytes; 0 closes it, ``None`` leaves the capacity as it is."""
    guard: str | None = None
    """Who set it."""
    reason: str = ""
    restart_only: bool = False
    retry_at: float | None = None
    """When it next changes by itself, by ``time.monotonic``."""
    trials: int | None = None
    """Leases that may run at once while a breaker is half-open."""
    clamp: float | None = None
    """Factor on new tokens."""


Apply = Callable[[int, Verdict], object]
"""``(device index, verdict)``: puts it into force."""


class Supervisor:
    """Watches the devices of one admission and tells ``apply`` what follows.

    ``held(index) -> (capacity, bytes held)`` asks the ledger. Construction touches no driver.
    """

    def __init__(
        self, settings: Settings, apply: Apply, held: Callable[[int], tuple[int | None, int | None]]
    ) -> None:
        self._settings = settings
        self._apply = apply
        self._held = held
        self._reviewing = threading.Lock()
        self._measuring = threading.Lock()
        self._is_started = False
        self._measured: list[Capacity] = []
        self._failed_at = float("-inf")
        self._failure = ""
        self.is_measured = isinstance(settings.capacity, int)
        """Whether the capacity is known."""
        self.devices: tuple[Device, ...] = self._given_devices()
        self._watch(self.devices)

    def _given_devices(self) -> tuple[Device, ...]:
        settings = self._settings
        if settings.devices or not settings.guards or not isinstance(settings.capacity, int):
            return tuple(settings.devices)
        # Guards that need no reading (out of memory, faults) still need somebody to call them.
        from gpu_admission.devices import FixedDevice

        return (FixedDevice(settings.capacity, name="device"),)

    def _watch(self, devices: Sequence[Device]) -> None:
        self.devices = tuple(devices)
        self.guards: list[list[Guard]] = []
        self.verdicts = [Verdict() for _ in devices]
        self._outcomes: list[list[Outcome]] = [[] for _ in devices]
        self.readings: Readings | None = None
        if not devices:
            return
        from gpu_admission.devices import Readings

        guards = self._settings.guards
        if guards is None:
            guards = _default_guards(self._settings)
        self.guards = [copy.deepcopy(list(guards)) for _ in devices]
        self.readings = Readings(devices, self.review, leases=self._held)

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to measure or to watch."""
        return bool(self.devices) or not self.is_measured

    @property
    def clamp(self) -> float | None:
        """The smallest factor on new tokens that a guard asks for now."""
        return min((v.clamp for v in self.verdicts if v.clamp is not None), default=None)

    def measure(self) -> list[Capacity]:
        """The capacity of each device, measured once; blocks, so call it in a thread.

        Raises ``Unavailable`` when a device does not tell. It is asked again a few seconds later.
        """
        with self._measuring:
            if self.is_measured:
                return self._measured
            if time.monotonic() - self._failed_at >= _RETRY_MEASURING:
                self._failure = self._try_to_measure()
            if not self.is_measured:
                raise Unavailable("gpu_unavailable", self._failure)
            return self._measured

    def _try_to_measure(self) -> str:
        """An empty text, or why it failed."""
        from gpu_admission.devices import discover

        why = ""
        if self.readings is None:
            # What a request uses unless it is told otherwise; ``devices=`` names several.
            found = discover()
            self._watch(found.devices[:1])
            why = f" [{found.reason}]"
        assert self.readings is not None
        self.readings.step()
        try:
            self._measured = [self._measure_one(index) for index in range(len(self.devices))]
        except ValueError as error:
            self._failed_at = time.monotonic()
            logger.error("%s", error)
            return str(error)
        for capacity in self._measured:
            logger.info("%s%s", capacity.explanation, why)
        self.is_measured = True
        return ""

    def _measure_one(self, index: int) -> Capacity:
        from gpu_admission.devices import measure

        settings = self._settings
        return measure(
            self._last(index) or DeviceReading(),
            name=self.devices[index].name,
            share=_share(settings.capacity),
            reserve=settings.reserve,
            margin=0.1 if settings.margin is None else settings.margin,
        )

    def start(self) -> None:
        """Begin to read the devices, in a thread of this process. Never blocks."""
        if self._is_started:
            return
        self._is_started = True
        for index, guards in enumerate(self.guards):
            measured = self._measured[index] if self._measured else None
            for guard in guards:
                begin = getattr(guard, "begin", None)
                if begin is not None:
                    begin(measured, overcommit=self._settings.overcommit)
        if self.readings is not None:
            self.readings.start()

    def stop(self) -> None:
        if self.readings is not None:
            self.readings.stop()

    def ended(self, index: int, outcome: Outcome) -> None:
        """Tell the guards of device ``index`` how a lease ended."""
        if not self.guards:
            return
        self._outcomes[index].append(outcome)
        # The rest waits for the next reading: only these change what is safe by themselves.
        if outcome.kind in ("oom", "fault") or self.verdicts[index].trials is not None:
            self.review(index)

    def review(self, index: int) -> None:
        """Ask the guards of device ``index`` again, and put what they say into force."""
        if not self._is_started:
            return
        with self._reviewing:
            now = time.monotonic()
            outcomes, self._outcomes[index] = self._outcomes[index], []
            verdict = self._ask(index, outcomes, now)
            changed, self.verdicts[index] = verdict != self.verdicts[index], verdict
        if changed:
            self._apply(index, verdict)

    def closed(self) -> Verdict | None:
        """Why nothing starts on any device; ``None`` where something may."""
        shut = [verdict for verdict in self.verdicts if verdict.ceiling == 0]
        if not shut or len(shut) < len(self.verdicts):
            return None
        return min(shut, key=lambda verdict: verdict.restart_only)

    def trying(self) -> Verdict | None:
        """Why nobody may wait: every device is closed, or tried out by a few requests at a time."""
        tried = [verdict for verdict in self.verdicts if verdict.trials is not None]
        if not tried or not all(v.ceiling == 0 or v.trials is not None for v in self.verdicts):
            return None
        return tried[0]

    def _ask(self, index: int, outcomes: Sequence[Outcome], now: float) -> Verdict:
        capacity, held = self._held(index)
        blank = DeviceReading(capacity=capacity, held=held, taken_at=now)
        readings = self._latest(index) or (blank,)
        verdict = Verdict()
        for guard in self.guards[index]:
            verdict = _lower(verdict, _ask_one(guard, readings, outcomes, now))
            self._act(guard)
        return verdict

    def _act(self, guard: Guard) -> None:
        """Call what a guard wants called once, in a thread of its own: it may be slow."""
        action = getattr(guard, "action", None)
        if action is None:
            return
        guard.action = None  # type: ignore[attr-defined]
        threading.Thread(target=_logged, args=(action, guard.name), daemon=True).start()

    def _latest(self, index: int) -> Sequence[DeviceReading]:
        return () if self.readings is None else self.readings.latest(index)

    def _last(self, index: int) -> DeviceReading | None:
        latest = self._latest(index)
        return latest[-1] if latest else None

    def verdict(self, index: int) -> Verdict:
        """What holds on device ``index`` now."""
        return self.verdicts[index] if self.verdicts else Verdict()

    def reading(self, index: int, now: float) -> tuple[DeviceReading | None, float | None]:
        """The last reading of device ``index`` and its age in seconds."""
        last = self._last(index)
        return last, None if last is None else now - last.taken_at


def _default_guards(settings: Settings) -> tuple[Guard, ...]:
    from gpu_admission.guards import FaultGuard, MemoryGuard, OutOfMemoryGuard

    return MemoryGuard(), OutOfMemoryGuard(), FaultGuard(on_fault=settings.on_fault)


def _ask_one(
    guard: Guard, readings: Sequence[DeviceReading], outcomes: Sequence[Outcome], now: float
) -> Verdict:
    """What one guard says; one that fails has no say, and is logged."""
    try:
        limit = guard.ceiling(readings, outcomes, now)
    except Exception:
        logger.exception("guard %r failed", guard.name)
        return Verdict()
    return Verdict(
        ceiling=limit,
        guard=guard.name,
        reason=guard.reason,
        restart_only=bool(limit == 0 and getattr(guard, "restart_only", False)),
        retry_at=getattr(guard, "retry_at", None),
        trials=getattr(guard, "trials", None),
        clamp=getattr(guard, "clamp", None),
    )


def _lower(one: Verdict, other: Verdict) -> Verdict:
    """Both together. A ceiling that only a restart lifts is named before any other."""
    speaks = other if _rank(other) < _rank(one) else one
    return Verdict(
        ceiling=speaks.ceiling,
        guard=speaks.guard if speaks.ceiling is not None or speaks.trials is not None else None,
        reason=speaks.reason,
        restart_only=speaks.restart_only,
        retry_at=speaks.retry_at,
        trials=_least(one.trials, other.trials),
        clamp=_least(one.clamp, other.clamp),
    )


def _rank(verdict: Verdict) -> tuple[bool, float, float]:
    ceiling = float("inf") if verdict.ceiling is None else verdict.ceiling
    trials = float("inf") if verdict.trials is None else verdict.trials
    return (not verdict.restart_only, ceiling, trials)


def _least(one: Any, other: Any) -> Any:
    return min((value for value in (one, other) if value is not None), default=None)


def _share(capacity: int | str | None) -> float:
    """0.85 of ``"85%"``; all of it for ``None``."""
    return float(capacity[:-1]) / 100 if isinstance(capacity, str) else 1.0


def _logged(action: Callable[[], object], name: str) -> None:
    try:
        action()
    except Exception:
        logger.exception("the action of guard %r failed", name)
