"""The start and the end of an admission in a process: measure the capacity, watch the devices, log it once.

Owns what is checked and said when work begins. How a capacity is measured is the monitor's.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import anyio
import anyio.to_thread

from gpu_admission.admission.events import Events
from gpu_admission.admission.seam import Budget
from gpu_admission.admission.startline import start_line
from gpu_admission.admission.twins import twins
from gpu_admission.guards.monitor import Monitor
from gpu_admission.rules.metering import Metering, Priced
from gpu_admission.rules.misfits import misfits
from gpu_admission.settings import Settings

logger = logging.getLogger("gpu_admission")


class Startup:
    """The start and the stop of one admission in one process."""

    def __init__(
        self,
        settings: Settings,
        metering: Metering,
        locked: Budget,
        monitor: Monitor,
        events: Events,
    ) -> None:
        self._settings = settings
        self._metering = metering
        self._locked = locked
        self._monitor = monitor
        self._events = events
        self._started = self._has_ended = False
        self.taken: Sequence[str] = ()
        """Variables of the environment that gave settings."""

    async def begin(self) -> None:
        """Measure the capacity and begin to watch the devices: at the server's startup.

        Raises ``ValueError`` under ``strict=True`` for what could then not be served: a device
        that does not tell its memory, a setting by which a request could never fit. Nothing runs on
        in the background then.
        """
        try:
            await self._begin()
        except BaseException:
            self.stop()
            raise

    async def _begin(self) -> None:
        is_on = self._settings.mode != "off"
        if is_on:
            await self._locked.join()
            await anyio.to_thread.run_sync(self._monitor.measure)
        self.start()
        if self._settings.strict and is_on:
            if self._monitor.failure:
                raise ValueError(f"{self._monitor.failure} (strict=True)")
            self.check_sizes()

    def start(self) -> None:
        """Work begins: said once, at the server's startup or else at the first request."""
        if self._started or self._has_ended or not self._monitor.is_measured:
            return
        if not self._locked.is_joined and self._settings.mode != "off":
            return
        self._started = True
        if self._settings.mode != "off":
            self._monitor.start()
        if self._settings.shared is None and self._settings.mode == "enforce":
            twins().begin(self._settings.name, self._monitor.devices)
        with self._locked as ledger:
            capacity = ledger.capacity
        control = self._metering.control_paths()
        logger.info("%s", start_line(self._settings, capacity, self._monitor.names, control, self.taken))
        logger.debug("control paths, which pass at once: %s", ", ".join(control) or "none")
        for sentence in self.misfits():
            logger.warning("%s", sentence)
        self._events.started(capacity)

    def stop(self) -> None:
        """Stop what runs in the background, until the server starts again."""
        self._monitor.stop()
        self._started = False

    def end(self) -> None:
        """The same for good: what is starting just now does not go on."""
        self._has_ended = True
        self.stop()

    def has_door(self, door: Priced) -> None:
        """A route has an estimator of its own: its size is held against the capacity, as the settings' are.

        Raises ``ValueError`` under ``strict=True`` for one that could never fit, once capacities are known.
        """
        self._metering.has_door(door)
        if not (self._settings.strict or self._started):
            return
        for sentence in misfits([(door.title, door.estimator)], None, self._largest()):
            if self._settings.strict:
                raise ValueError(f"{sentence} (strict=True)")
            logger.warning("%s", sentence)

    def check_sizes(self) -> None:
        """Raises ``ValueError`` for a setting by which a request could never fit."""
        for sentence in self.misfits():
            raise ValueError(f"{sentence} (strict=True)")

    def misfits(self) -> Sequence[str]:
        """A sentence for each setting and door by which a request could never fit.

        Nothing is known of devices that have not told their memory yet.
        """
        named = (*self._metering.named_estimators(), *self._metering.own_estimators())
        return misfits(named, self._settings.fallback, self._largest())

    def _largest(self) -> float:
        """Bytes that a request may ever hold; no limit as long as capacities are not known."""
        lanes = range(1 if self._settings.lane is None else len(self._settings.lanes))
        with self._locked as ledger:
            return max(ledger.largest(lane) for lane in lanes) or math.inf
