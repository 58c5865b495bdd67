"""Meters of how much memory the real thing takes while it is driven.

Owns the choice of a meter by name. torch's own peak is ``estimators.TorchPeak``; anything with
``start()`` and ``peak()`` may be given instead.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from gpu_admission.devices import NvmlDevice, discover
from gpu_admission.estimators import PeakMeter, TorchPeak
from gpu_admission.estimators.polled import Polled, resident
from gpu_admission.planning.freed import give_back, keep_little
from gpu_admission.planning.named import named
from gpu_admission.types import Device

NAMES = ("auto", "torch", "nvml", "host")


class Meter:
    """A meter of which ``says`` tells, for people, whose memory it looks at."""

    def __init__(self, meter: PeakMeter, says: str) -> None:
        self._meter = meter
        self.says = says

    def start(self) -> int:
        return self._meter.start()

    def peak(self) -> int:
        return self._meter.peak()


class OwnMemory(Polled):
    """The host memory of this process. What was freed before is given back to the system at each ``start``:
    memory that is used again would not show."""

    def __init__(self) -> None:
        super().__init__(lambda: resident(os.getpid()))
        keep_little()

    def start(self) -> int:
        give_back()
        return super().start()


def meter_for(name: str, *, pid: int | None, here: bool) -> Meter:
    """The meter called ``name``: one of ``NAMES``, or ``module:factory`` that makes one.

    ``here`` says whether the work is done in this process: only then can torch's allocator or, without
    ``pid``, this process's memory be looked at. Raises ``ValueError`` saying what there is.
    """
    if name == "torch":
        return _torch(here)
    if name == "nvml":
        return _device(discover().devices[0])
    if name == "host":
        return _host(pid, here)
    if name != "auto":
        return Meter(named(name, what="--meter")(), name)
    return _best(pid, here)


def _best(pid: int | None, here: bool) -> Meter:
    if here and _cuda():
        return _torch(here)
    device = discover().devices[0]
    if isinstance(device, NvmlDevice):
        return _device(device)
    if pid is None and not here:
        raise ValueError("no GPU is seen here: give --meter host --pid PID, or --meter module:factory")
    found = _host(pid, here)
    return Meter(found, f"{found.says}: no GPU is seen here")


def _cuda() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def _torch(here: bool) -> Meter:
    if not here:
        raise ValueError("--meter torch sees this process alone: it is for module:function")
    if not _cuda():
        raise ValueError("--meter torch needs a CUDA or ROCm device, and torch sees none")
    return Meter(TorchPeak(), "device memory, as torch's allocator counts it")


def _host(pid: int | None, here: bool) -> Meter:
    if pid is None and not here:
        raise ValueError("--meter host needs --pid: the work is done in another process")
    if pid is None or pid == os.getpid():
        return Meter(OwnMemory(), "host memory of this process")
    return Meter(Polled(lambda: resident(pid)), f"host memory of process {pid}")


def _device(device: Device) -> Meter:
    return Meter(Polled(_use_of(device)), f"memory in use on {device.name}")


def _use_of(device: Device) -> Callable[[], int]:
    def read() -> int:
        reading = device.read()
        if reading.used is None:
            raise RuntimeError(f"{device.name} does not show what is in use: {reading.error or 'no reason'}")
        return reading.used

    return read
