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
from gpu_admission.planning.named import named
from gpu_admission.types import Device

NAMES = ("auto", "torch", "nvml", "host")


def meter_for(name: str, *, pid: int | None, here: bool) -> PeakMeter:
    """The meter called ``name``: one of ``NAMES``, or ``module:factory`` that makes one.

    ``here`` says whether the work is done in this process: only then can torch's allocator or, without
    ``pid``, this process's memory be looked at. Raises ``ValueError`` saying what there is.
    """
    if name == "torch":
        return _torch(here)
    if name == "nvml":
        return Polled(_use_of(discover().devices[0]))
    if name == "host":
        return Polled(lambda: resident(_process(pid, here)))
    if name != "auto":
        made: PeakMeter = named(name, what="--meter")()
        return made
    return _best(pid, here)


def _best(pid: int | None, here: bool) -> PeakMeter:
    if here and _cuda():
        return TorchPeak()
    device = discover().devices[0]
    if isinstance(device, NvmlDevice):
        return Polled(_use_of(device))
    if pid is None and not here:
        raise ValueError("no GPU is seen here: give --meter host --pid PID, or --meter module:factory")
    return Polled(lambda: resident(_process(pid, here)))


def _cuda() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def _torch(here: bool) -> PeakMeter:
    if not here:
        raise ValueError("--meter torch sees this process alone: it is for module:function")
    if not _cuda():
        raise ValueError("--meter torch needs a CUDA or ROCm device, and torch sees none")
    return TorchPeak()


def _process(pid: int | None, here: bool) -> int:
    if pid is None and not here:
        raise ValueError("--meter host needs --pid: the work is done in another process")
    return pid or os.getpid()


def _use_of(device: Device) -> Callable[[], int]:
    def read() -> int:
        reading = device.read()
        if reading.used is None:
            raise RuntimeError(f"{device.name} does not show what is in use: {reading.error or 'no reason'}")
        return reading.used

    return read
