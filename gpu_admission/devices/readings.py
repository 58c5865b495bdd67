"""The readings loop: looks at every device now and then, off the event loop.

Owns the threads that wait for drivers, the time limit on them, and the last readings with
their times. One ticking thread per process, one short-lived thread a look: a driver that
blocks costs its own device a missed look, and nobody else anything. What follows from a
reading is decided by guards; nothing here touches a budget.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence

import msgspec

from gpu_admission.devices.capacity import counting, own_bytes
from gpu_admission.devices.plausible import plausible
from gpu_admission.types import Device, DeviceReading

logger = logging.getLogger("gpu_admission")


class Readings:
    """The latest readings of ``devices``, taken every ``every`` seconds once started.

    A look that has not ended after ``limit`` seconds is a miss: the last good reading stays,
    with its age and an ``error``. ``leases(index) -> (capacity, held)`` is asked before and
    after each look and written into the reading. ``on_reading(index)`` is called after each
    look, in the ticking thread. ``others(index)`` gives what leases of other processes take:
    that is added to what is ours. ``keep`` readings of each device are kept.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        on_reading: Callable[[int], object] = lambda index: None,
        *,
        leases: Callable[[int], tuple[int | None, int | None]] = lambda index: (None, None),
        others: Callable[[int], int] = lambda index: 0,
        every: float = 0.5,
        limit: float = 5.0,
        keep: int = 32,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not every > 0:
            raise ValueError(f"every must be above 0 seconds, got {every!r}")
        if not limit >= 0:
            raise ValueError(f"limit must be 0 seconds or more, got {limit!r}")
        self._devices = tuple(devices)
        self._on_reading = on_reading
        self._leases = leases
        self._others = others
        self._added = [0] * len(self._devices)
        self._every = every
        self._limit = limit
        self._clock = clock
        self._keep = keep
        # Replaced whole at each look, so that any thread may read it at any time.
        self._history: list[tuple[DeviceReading, ...]] = [()] * len(self._devices)
        self._doubted: set[int] = set()
        self._adopt()

    def _adopt(self) -> None:
        """Threads and locks of another process mean nothing in this one."""
        self._pid = os.getpid()
        self._stepping = threading.Lock()
        self._starting = threading.Lock()
        self._looks: dict[int, _Look] = {}
        self._stop: threading.Event | None = None

    def start(self) -> None:
        """Start ticking, unless this process does already; never blocks. Not to be called before a fork."""
        if self._pid != os.getpid():
            self._adopt()
        # The collector may end a lease, whose outcome calls for readings, in the middle of a start: it
        # leaves that to the other.
        if not self._starting.acquire(blocking=False):
            return
        try:
            if self._stop is None:
                self._stop = threading.Event()
                self._begin(self._stop)
        finally:
            self._starting.release()

    def _begin(self, stop: threading.Event) -> None:
        threading.Thread(
            target=_tick,
            args=(weakref.ref(self), stop, self._every),
            name="gpu-admission-readings",
            daemon=True,
        ).start()

    def stop(self) -> None:
        """Stop ticking; a look that is on its way is not waited for."""
        if self._stop is not None:
            self._stop.set()
            self._stop = None

    def latest(self, index: int) -> tuple[DeviceReading, ...]:
        """Readings of device ``index``, oldest first; empty before the first look."""
        return self._history[index]

    def own(self, index: int) -> int | None:
        """Bytes of this process on device ``index`` by the last reading; ``None`` = not told."""
        latest = self._history[index]
        owned = own_bytes(latest[-1])[0] if latest else None
        return None if owned is None else max(0, owned - self._added[index])

    def step(self) -> None:
        """Look at every device once, for at most ``limit`` seconds; blocks, so call it in a thread."""
        if self._pid != os.getpid():
            self._adopt()
        with self._stepping:
            held = [self._leases(index)[1] for index in range(len(self._devices))]
            looks = [self._look(index) for index in range(len(self._devices))]
            until = self._clock() + self._limit
            for index, look in enumerate(looks):
                look.wait(until - self._clock())
                self._record(index, look, held[index])
        for index in range(len(self._devices)):
            self._tell(index)

    def _look(self, index: int) -> _Look:
        """The look that is still on its way, or a new one: never two at once."""
        look = self._looks.get(index)
        if look is None or look.done:
            self._looks[index] = look = _Look(self._devices[index], self._clock())
        return look

    def _record(self, index: int, look: _Look, held_before: int | None) -> None:
        now = self._clock()
        reading = plausible(look.reading or DeviceReading(error=f"no answer for {now - look.since:.0f} s"))
        if look.reading is not None and reading is not look.reading:
            self._doubt(index, reading.error or "")
        history: Sequence[DeviceReading] = self._history[index]
        if reading.total is None and history and history[-1].total is not None:
            # Nothing new: the last good one stays, and grows old.
            *history, last = history
            faults = reading.faults or last.faults
            reading = msgspec.structs.replace(last, error=reading.error, faults=faults)
        else:
            self._added[index] = self._others(index)
            reading = counting(reading, self._added[index])
            if not reading.taken_at:
                reading = msgspec.structs.replace(reading, taken_at=now)
        capacity, held = self._leases(index)
        if held_before is not None and held is not None:
            # A lease that ended during the look may still be inside what was read.
            held = max(held, held_before)
        stamped = msgspec.structs.replace(reading, capacity=capacity, held=held)
        self._history[index] = (*history, stamped)[-self._keep :]

    def _doubt(self, index: int, why: str) -> None:
        """Log once for each device that some of its figures are not believed."""
        if index not in self._doubted:
            self._doubted.add(index)
            logger.warning("%s: not all that it tells is believed: %s", self._devices[index].name, why)

    def _tell(self, index: int) -> None:
        try:
            self._on_reading(index)
        except Exception:
            logger.exception("a reading of %s could not be used", self._devices[index].name)


class _Look:
    """One call of ``Device.read`` in a thread of its own, that nobody has to wait for."""

    def __init__(self, device: Device, since: float) -> None:
        self._device = device
        self.since = since
        self.reading: DeviceReading | None = None
        self._done = threading.Event()
        thread = threading.Thread(target=self._read, name=f"gpu-admission-{device.key}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no memory for its stack, or too many threads: the next may succeed
            self.reading = DeviceReading(error=f"{type(error).__name__}: {error}")
            self._done.set()

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def wait(self, seconds: float) -> None:
        self._done.wait(max(0.0, seconds))

    def _read(self) -> None:
        try:
            self.reading = self._device.read()
        except Exception as error:  # a user's own device that breaks the promise
            self.reading = DeviceReading(error=f"{type(error).__name__}: {str(error)[:200]}")
        finally:
            self._done.set()


def _tick(readings: weakref.ref[Readings], stop: threading.Event, every: float) -> None:
    """Step until stopped, or until nobody holds the readings any more."""
    while True:
        current = readings()
        if current is None:
            return
        current.step()
        del current
        if stop.wait(every):
            return
