"""What there is: devices, the loop that reads them, and the capacity that follows.

One kind of device a file; each turns one source of facts into ``DeviceReading`` values.
Who may start, and what is safe now, are decided elsewhere (``budget``, ``guards``). Importing
this package loads no driver, no torch and no pynvml.
"""

from gpu_admission.devices.capacity import Baseline, Capacity, ceiling, find_baseline, measure, room
from gpu_admission.devices.discover import Discovery, discover
from gpu_admission.devices.fixed import FixedDevice
from gpu_admission.devices.host import HostMemory
from gpu_admission.devices.nvml import NvmlDevice
from gpu_admission.devices.readings import Readings
from gpu_admission.devices.torch import TorchDevice, empty_cache, on_device

__all__ = [
    "Baseline",
    "Capacity",
    "Discovery",
    "FixedDevice",
    "HostMemory",
    "NvmlDevice",
    "Readings",
    "TorchDevice",
    "ceiling",
    "discover",
    "empty_cache",
    "find_baseline",
    "measure",
    "on_device",
    "room",
]
