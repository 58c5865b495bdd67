"""An admission's devices and guards: what was measured, and what is safe now, as limits on its ledger.

Owns the capacity that is measured at start, the readings loop, and each device's own copy
of each guard. The limits are put on the ledger; who may start under them is decided there.
Nothing here runs while requests are served, but for a note of how each ended.

Threads: guards are asked in a turn of the ledger, and what they say is in force before it
ends, so that verdicts can't overtake one another. The locks of measuring and of reading are
taken before it, never inside it; no driver is ever asked under it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from gpu_admission.devices.capacity import confirmed
from gpu_admission.guards.device import DeviceGuard
from gpu_admission.guards.limited import Limited
from gpu_admission.guards.use import resident_of, use_of
from gpu_admission.guards.verdict import Verdict, is_news
from gpu_admission.guards.watched import Kind, Watched
from gpu_admission.runtime import clock
from gpu_admission.settings import Settings
from gpu_admission.sizes import format_bytes
from gpu_admission.types import Device, DeviceReading, Guard

if TYPE_CHECKING:
    from gpu_admission.devices import Capacity, Readings

logger = logging.getLogger("gpu_admission")
_URGENT = frozenset({"oom", "fault"})
_WORTH_GROWING = 1.01
"""A capacity that would grow by less than this stays as it is: readings fluctuate."""
_MEASURED_AGAIN_IN = 5.0
"""``Retry-After`` in seconds while a capacity can't be measured; every reading tries again."""


class Monitor:
    """Watches the devices of one admission, and limits its ledger by what follows.

    ``devices`` as ``given_devices`` has them. Construction touches no driver. Raises
    ``TypeError``/``ValueError`` for settings that can't work together.
    """

    def __init__(self, settings: Settings, devices: Sequence[Device], ledger: Limited) -> None:
        self._settings = settings
        self._ledger = ledger
        self.closed: Verdict | None = None
        """Why nothing may start: every device is closed. The reason is that of the one that opens first."""
        self.trying: Verdict | None = None
        """Why nothing may wait: every device is closed, or being tried out by a few requests at a time."""
        self._measuring = threading.Lock()
        self._aside: threading.Thread | None = None
        self._measures = not isinstance(settings.capacity, int)
        self._missing = ""
        """Why no device counts as found."""
        self._why = ""
        """How the device was found, for the log."""
        self.is_measured = not self._measures
        """Whether measuring was tried, or there is nothing to measure."""
        self._watch(devices)

    def _watch(self, devices: Sequence[Device]) -> None:
        guards = _guards(self._settings)
        self._watched = [Watched(device, guards) for device in devices]
        self._name()
        self.is_watching = bool(devices and guards) and not _only_fails(self._settings)
        """Whether guards hear of every lease that ends; otherwise they do from the first failure on."""
        self.readings: Readings | None = None
        if devices:
            from gpu_admission.devices import Readings

            self.readings = Readings(
                devices, self.review, leases=self._ledger.held, others=self._ledger.taken_by_others
            )

    def _name(self) -> None:
        """Take the devices' names, which are known, and stay, once drivers were asked for a reading."""
        self.names = tuple(device.name for device in self.devices) or ("device",)

    @property
    def devices(self) -> tuple[Device, ...]:
        """In the order of their indices; empty until they are found."""
        return tuple(watched.device for watched in self._watched)

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to measure or to watch."""
        return not self.is_measured or bool(self._watched and not _only_fails(self._settings))

    # measuring

    def measure(self) -> None:
        """Find the devices and measure what they have, once; blocks, so call it in a thread.

        A device that does not tell is closed, and asked again at every reading.
        """
        with self._measuring:
            if self.is_measured:
                return
            if self.readings is None and self._settings.capacity is None and self._ledger.is_given:
                self.fix_capacity()  # it joins a budget of other processes, and says nothing of its own
                return
            if self.readings is None:
                from gpu_admission.devices import discover

                # What a request uses unless it is told otherwise; ``devices=`` names several.
                found = discover()
                self._watch(found.devices[:1])
                self._why = f" [{found.reason}]"
                if not found.has_gpu:
                    self._lacks_gpu(found.reason)
            assert self.readings is not None
            self.readings.step()
            self.is_measured = True

    def _lacks_gpu(self, reason: str) -> None:
        """Warn: without its driver, a service for a GPU would be metered by the host's memory."""
        if self._settings.require_gpu:
            self._missing = f"no GPU was found ({reason}), and require_gpu=True"
            return
        logger.warning(
            "no GPU was found: %s. Give capacity in bytes or devices=[...] where there is one; "
            "require_gpu=True admits nothing without",
            reason,
        )

    def measure_aside(self) -> None:
        """The same in a thread of its own, for callers that must not be kept waiting."""
        if self._aside is None:
            self._aside = threading.Thread(target=self.measure, name="gpu-admission-measure", daemon=True)
            self._aside.start()

    def fix_capacity(self) -> None:
        """The capacity was given in bytes after all: stop measuring it."""
        self._measures = False
        self.is_measured = True

    @property
    def failure(self) -> str:
        """Why a capacity can't be measured; empty where all are known."""
        return next((watched.failure for watched in self._watched if watched.failure), "")

    def _begin(self, index: int, now: float) -> None:
        """Let the guards of device ``index`` begin, once its capacity is known."""
        watched, overcommit = self._watched[index], self._settings.overcommit
        if not self._measures:
            watched.begin(None, overcommit)
            return
        reading, _ = self.reading(index, now)
        if reading is None:
            return
        try:
            if self._missing:
                raise ValueError(self._missing)
            measured = self._measure_one(index, reading)
        except ValueError as error:
            logger.log(logging.DEBUG if watched.failure else logging.ERROR, "%s", error)
            watched.failure = str(error)
            return
        logger.info("%s%s", measured.explanation, self._why)
        watched.begin(measured, overcommit)
        self._enforce(index, Verdict(), int(measured.bytes * overcommit))

    def _measure_one(self, index: int, reading: DeviceReading) -> Capacity:
        from gpu_admission.devices import measure

        settings, device = self._settings, self._watched[index].device
        begun = (watched.device for watched in self._watched if watched.begun)
        twin = next((other for other in begun if other.key == device.key), None)
        if twin is not None:
            raise ValueError(f"{device.name} and {twin.name} are the same device: name it once")
        return measure(
            reading,
            name=device.name,
            share=_share(settings.capacity),
            reserve=settings.reserve,
            margin=0.1 if settings.margin is None else settings.margin,
            resident=self._resident(index, reading),
        )

    def _resident(self, index: int, reading: DeviceReading) -> int | None:
        own = None if self.readings is None else self.readings.own(index)
        _, held = self._ledger.held(index)
        return resident_of(own, reading, held=held, here=self._ledger.held_here(index))

    # watching

    def start(self) -> None:
        """Begin to read the devices, in a thread of this process, unless it runs. Never blocks."""
        if self.readings is not None:
            for index in range(len(self.devices)):
                self.review(index)  # before the first request, not after the first reading
            if self.is_watching:
                self.readings.start()

    def stop(self) -> None:
        """Read no more, until ``start``."""
        if self.readings is not None:
            self.readings.stop()

    def ended(self, index: int, kind: Kind, size: int, error: str, at: float) -> None:
        """Pass on to the guards of device ``index`` how work on it ended.

        They hear of out-of-memory and of a fault at once, and of everything while the device is being
        tried out; of the rest with the next reading. A device that only others of a shared budget know has
        no guards here.
        """
        if index >= len(self._watched):
            return
        if not self.is_watching:
            if kind not in _URGENT or self.readings is None:
                return
            # From now on successes count too, and guards recover over time: both need the readings' tick.
            self.is_watching = True
            start = self.readings.start
            self._ledger.turn.take(lambda: start)  # after the turn, which a new thread may have to wait for
        watched = self._watched[index]
        watched.outcomes.append((kind, size, error, at))
        if kind in _URGENT or watched.verdict.trials is not None:
            self.review(index)

    def review(self, index: int) -> None:
        """Ask the guards of device ``index`` again, and put what they say into force."""
        with self._ledger:
            watched, now = self._watched[index], clock.monotonic()
            if not watched.begun:
                self._begin(index, now)
            self._grow(index)
            verdict = self._verdict(index, now)
            if verdict == watched.verdict:
                return
            self._enforce(index, verdict, None)
            capacity, _ = self._ledger.held(index)
            if is_news(verdict, watched.told, capacity):
                watched.told = verdict
                _log(watched.device, verdict)

    def _grow(self, index: int) -> None:
        """Raise a measured capacity when others gave memory back, such as a worker that was still exiting."""
        watched = self._watched[index]
        if not self._measures or watched.measured is None or self._ledger.is_given:
            return
        size = confirmed(self._latest(index), watched.measured)
        capacity, _ = self._ledger.held(index)
        if size is None or size * self._settings.overcommit <= capacity * _WORTH_GROWING:
            return
        logger.info(
            "%s: other processes left it: capacity is now %s", watched.device.name, format_bytes(size)
        )
        self._enforce(index, watched.verdict, int(size * self._settings.overcommit))

    def _enforce(self, index: int, verdict: Verdict, capacity: int | None) -> None:
        """Put what the guards of device ``index`` say, and a ``capacity`` that was measured, into force."""
        if not self.is_measured:
            self._name()
        self._watched[index].verdict = verdict
        self.closed, self.trying = self._all_closed(), self._all_tried()
        ceiling, trials = verdict.ceiling, verdict.trials
        self._ledger.allow(index, capacity=capacity, ceiling=ceiling, max_running=trials, verdict=verdict)
        if self.closed is not None:
            # What comes now is refused at once: so is what came before.
            self._ledger.refuse_all()

    def _verdict(self, index: int, now: float) -> Verdict:
        watched = self._watched[index]
        if watched.failure:
            return Verdict(0, "capacity", watched.failure, retry_at=now + _MEASURED_AGAIN_IN)
        if not watched.begun:
            return watched.verdict
        capacity, held = self._ledger.held(index)
        latest = self._latest(index)
        if latest and latest[-1].capacity != capacity:
            # The capacity was measured, or changed, since that reading.
            latest = (*latest[:-1], msgspec.structs.replace(latest[-1], capacity=capacity))
        blank = DeviceReading(capacity=capacity, held=held, taken_at=now)
        return watched.ask(latest, blank, watched.take_outcomes(), now)

    def use(self) -> tuple[Sequence[int], Sequence[int]]:
        """For each device the bytes that this process holds besides its leases, and what these take."""
        return use_of(self._watched, self.readings)

    @property
    def clamp(self) -> float | None:
        """The smallest factor on new tokens that a guard asks for now.

        Where a request will run is not known before it is estimated, so one hot device clamps all.
        """
        return min((w.verdict.clamp for w in self._watched if w.verdict.clamp is not None), default=None)

    def _all_closed(self) -> Verdict | None:
        verdicts = [watched.verdict for watched in self._watched]
        if not verdicts or any(verdict.ceiling != 0 for verdict in verdicts):
            return None
        return min(verdicts, key=_opens_at)

    def lowered(self) -> Verdict | None:
        """The highest of the devices' ceilings, and who set it; ``None`` where one has none."""
        verdicts = [watched.verdict for watched in self._watched]
        if any(verdict.ceiling is None for verdict in verdicts):
            return None
        return max(verdicts, key=lambda verdict: verdict.ceiling or 0, default=None)

    def _all_tried(self) -> Verdict | None:
        verdicts = [watched.verdict for watched in self._watched]
        tried = [verdict for verdict in verdicts if verdict.trials is not None]
        if not tried or not all(v.ceiling == 0 or v.trials is not None for v in verdicts):
            return None
        return min(tried, key=_opens_at)

    def verdict(self, index: int) -> Verdict:
        """What holds on device ``index`` now."""
        return self._watched[index].verdict if self._watched else Verdict()

    def reading(self, index: int, now: float) -> tuple[DeviceReading | None, float | None]:
        """The last reading of device ``index`` and its age in seconds."""
        latest = self._latest(index)
        return (latest[-1], now - latest[-1].taken_at) if latest else (None, None)

    def _latest(self, index: int) -> Sequence[DeviceReading]:
        return () if self.readings is None else self.readings.latest(index)


def given_devices(settings: Settings) -> tuple[Device, ...]:
    """The devices of the settings, or else a placeholder for guards that need no reading."""
    if settings.devices or settings.guards == () or not isinstance(settings.capacity, int):
        return tuple(settings.devices)
    reader = next((g.name for g in settings.guards or () if isinstance(g, DeviceGuard)), None)
    if reader is not None:
        raise ValueError(
            f"guards: {reader!r} reads a device, and capacity in bytes says of which: give devices=[...] too"
        )
    from gpu_admission.devices import FixedDevice

    return (FixedDevice(settings.capacity, name="device"),)


def _guards(settings: Settings) -> Sequence[Guard]:
    if settings.guards is None:
        from gpu_admission.guards import FaultGuard, MemoryGuard, OutOfMemoryGuard

        learning = OutOfMemoryGuard(), FaultGuard(on_fault=settings.on_fault)
        return learning if _only_fails(settings) else (MemoryGuard(), *learning)
    if settings.on_fault != "close":
        raise ValueError("on_fault is for the guards that guards=None gives: use FaultGuard(on_fault=...)")
    guards: Sequence[Guard] = settings.guards
    return guards


def _only_fails(settings: Settings) -> bool:
    """Whether no guard needs readings: they learn from failures, and cost nothing before the first."""
    return settings.guards is None and not settings.devices and isinstance(settings.capacity, int)


def _opens_at(verdict: Verdict) -> tuple[bool, float]:
    return verdict.restart_only, float("inf") if verdict.retry_at is None else verdict.retry_at


def _share(capacity: int | str | None) -> float:
    """0.85 of ``"85%"``; all of it for ``None``."""
    return float(capacity[:-1]) / 100 if isinstance(capacity, str) else 1.0


def _log(device: Device, verdict: Verdict) -> None:
    if not verdict.reason:
        logger.info("%s: nothing limits it any more", device.name)
        return
    level = logging.WARNING if verdict.ceiling == 0 else logging.INFO
    logger.log(level, "%s: guard %r: %s", device.name, verdict.guard, verdict.reason)
