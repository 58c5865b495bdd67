"""A device whose memory a test sets: no driver, no GPU.

Its bytes are those that a driver would report; what leases hold is not added automatically.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from gpu_admission import Admission
from gpu_admission.sizes import parse_bytes
from gpu_admission.types import DeviceReading


class FakeDevice:
    """``FakeDevice("24GiB")``; set ``foreign``, ``ours``, ``temperature``, ``faults`` and ``error`` at will.

    ``foreign`` is what other processes take, ``ours`` what this one has; sizes in bytes or as
    ``"6GiB"``. An ``error`` stands for a driver that does not answer. ``script`` gives whole readings
    in their order; the last one stays.
    """

    def __init__(
        self,
        total: int | str = "24GiB",
        *,
        foreign: int | str = 0,
        ours: int | str = 0,
        temperature: float | None = None,
        name: str = "fake",
        script: Iterable[DeviceReading] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total = parse_bytes(total, name="total")
        self.foreign = parse_bytes(foreign, name="foreign")
        self.ours = parse_bytes(ours, name="ours")
        self.temperature = temperature
        self.faults: tuple[str, ...] = ()
        self.error: str | None = None
        self.name = name
        self.reads = 0
        """How often it was read."""
        self._script: Iterator[DeviceReading] = iter(script)
        self._scripted: DeviceReading | None = None
        self._clock = clock

    @property
    def key(self) -> str:
        return self.name

    def read(self) -> DeviceReading:
        """What the driver reports now."""
        self.reads += 1
        self._scripted = next(self._script, self._scripted)
        if self._scripted is not None:
            return self._scripted
        if self.error is not None:
            return DeviceReading(taken_at=self._clock(), error=self.error)
        used = min(self.total, self.foreign + self.ours)
        return DeviceReading(
            total=self.total,
            used=used,
            free=self.total - used,
            ours=self.ours,
            temperature=self.temperature,
            faults=self.faults,
            taken_at=self._clock(),
        )


def look(admission: Admission, times: int = 1) -> None:
    """Have ``admission`` read its devices now, and its guards draw their conclusions; blocks."""
    readings = admission.monitor.readings
    if readings is None:
        raise ValueError("this admission has no devices to look at: give devices=[...]")
    for _ in range(times):
        readings.step()
