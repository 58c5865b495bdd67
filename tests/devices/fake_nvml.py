"""NVIDIA's driver library, as far as ``pynvml`` calls it, made of recorded answers.

Stands in place of ``pynvml.nvmlLib`` (the loaded shared library), so that the real ``pynvml``
runs on top: it fills the same ctypes structures through the same pointers and returns the
same codes. Figures are those that ``nvidia-smi`` shows for these cards in public reports.
"""

# ruff: noqa: N802 - functions are called as the driver calls them
from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pynvml  # type: ignore[import-untyped]

MIB = 2**20
NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED
UNKNOWN = pynvml.NVML_ERROR_UNKNOWN
_NO_VALUE = 2**64 - 1


@dataclass
class Gpu:
    """One card, or one MIG slice of a card."""

    name: bytes
    uuid: str
    total: int
    used: int
    pci: str = "00000000:01:00.0"
    temperature: int | None = 41
    utilization: int | None = 7
    processes: list[tuple[int, int | None]] = field(default_factory=list)
    driver_model: int | None = None
    """``None``: not Windows."""
    uncorrected: int | None = 0
    remap_failed: bool | None = False
    slices: list[Gpu] | None = None
    """``None``: MIG is off."""
    instance: tuple[int, int] = (0, 0)
    xids: list[int] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)
    """Call name -> the code that it fails with on this card."""


def a10(uuid: str = "GPU-a1000000-0000-4000-8000-000000000001", **changes: Any) -> Gpu:
    return Gpu(b"NVIDIA A10", uuid, 23028 * MIB, 301 * MIB, **changes)


def a100(uuid: str = "GPU-a1800000-0000-4000-8000-000000000002", **changes: Any) -> Gpu:
    return Gpu(b"NVIDIA A100-SXM4-80GB", uuid, 81920 * MIB, 580 * MIB, **changes)


def h100_mig() -> Gpu:
    """Two slices, 3g.40gb each; utilisation is not told in MIG mode."""
    name, memory = b"NVIDIA H100 80GB HBM3", 40448 * MIB
    slices = [
        Gpu(
            name + b" MIG 3g.40gb",
            "MIG-51ce0000-aaaa-5000-8000-00000000000a",
            memory,
            38 * MIB,
            instance=(1, 0),
        ),
        Gpu(
            name + b" MIG 3g.40gb",
            "MIG-51ce0000-bbbb-5000-8000-00000000000b",
            memory,
            9000 * MIB,
            instance=(2, 0),
        ),
    ]
    for part in slices:
        part.utilization = part.temperature = part.uncorrected = part.remap_failed = None
    uuid = "GPU-b1000000-0000-4000-8000-000000000003"
    return Gpu(name, uuid, 81559 * MIB, 9100 * MIB, slices=slices, utilization=None, temperature=48)


def rtx4090_wddm() -> Gpu:
    """Windows: the desktop has its share, and nothing is told of single processes' memory."""
    return Gpu(
        b"NVIDIA GeForce RTX 4090",
        "GPU-40900000-0000-4000-8000-000000000004",
        24564 * MIB,
        1710 * MIB,
        processes=[(os.getpid(), None), (4711, None)],
        driver_model=pynvml.NVML_DRIVER_WDDM,
        uncorrected=None,
        remap_failed=None,
    )


def gb10() -> Gpu:
    """Unified memory: every call about the card's own memory is refused."""
    return Gpu(
        b"NVIDIA GB10",
        "GPU-2dee0000-0000-4000-8000-000000000005",
        0,
        0,
        pci="0000000F:01:00.0",
        temperature=35,
        uncorrected=None,
        remap_failed=None,
        errors={"nvmlDeviceGetMemoryInfo": NOT_SUPPORTED},
    )


class FakeDriver:
    """The library object. ``calls`` are (process id, function) in order; ``down`` fails everything."""

    def __init__(self, *gpus: Gpu) -> None:
        self.gpus = list(gpus)
        self.calls: list[tuple[int, str]] = []
        self.down = 0
        self.missing: set[str] = set()
        self.block: Callable[[str], None] = lambda name: None

    def names(self) -> list[str]:
        return [name for _, name in self.calls]

    def __getattr__(self, name: str) -> _Function:
        if not name.startswith("nvml") or name in self.missing:
            raise AttributeError(name)
        return _Function(self, name)

    def handles(self) -> dict[int, Gpu]:
        found = {}
        for number, gpu in enumerate(self.gpus, start=1):
            found[number << 12] = gpu
            for place, part in enumerate(gpu.slices or (), start=1):
                found[(number << 12) + place] = part
        return found

    def gpu(self, handle: Any) -> Gpu:
        return self.handles()[ctypes.cast(handle, ctypes.c_void_p).value or 0]

    def point(self, pointer: Any, gpu: Gpu) -> int:
        address = next(address for address, other in self.handles().items() if other is gpu)
        value = ctypes.c_void_p(address)
        ctypes.memmove(ctypes.addressof(pointer._obj), ctypes.byref(value), ctypes.sizeof(value))
        return 0


class _Function:
    """One exported function: takes what ctypes would pass, returns a code."""

    def __init__(self, driver: FakeDriver, name: str) -> None:
        self._driver = driver
        self._name = name
        self.restype: Any = None

    def __call__(self, *arguments: Any) -> Any:
        driver, name = self._driver, self._name
        driver.calls.append((os.getpid(), name))
        driver.block(name)
        if driver.down:
            return driver.down
        plain = name.removesuffix("_v2").removesuffix("_v3")
        if arguments and isinstance(arguments[0], pynvml.c_nvmlDevice_t):
            gpu = driver.gpu(arguments[0])
            code = gpu.errors.get(plain, 0)
            return code or getattr(_Answers, plain)(driver, gpu, *arguments[1:])
        return getattr(_Library, plain)(driver, *arguments)


def _fill(pointer: Any, value: Any, **fields: int) -> int:
    if fields:
        for name, number in fields.items():
            setattr(pointer._obj, name, number)
    elif value is None:
        return int(NOT_SUPPORTED)
    else:
        pointer._obj.value = value
    return 0


class _Library:
    """Functions that ask about no card."""

    @staticmethod
    def nvmlInitWithFlags(driver: FakeDriver, flags: int) -> int:
        return 0

    @staticmethod
    def nvmlShutdown(driver: FakeDriver) -> int:
        return 0

    @staticmethod
    def nvmlErrorString(driver: FakeDriver, code: int) -> bytes:
        return b"Told by the library"

    @staticmethod
    def nvmlDeviceGetCount(driver: FakeDriver, count: Any) -> int:
        return _fill(count, len(driver.gpus))

    @staticmethod
    def nvmlDeviceGetHandleByIndex(driver: FakeDriver, index: Any, handle: Any) -> int:
        gpu = driver.gpus[index.value]
        return gpu.errors.get("nvmlDeviceGetHandleByIndex", 0) or driver.point(handle, gpu)

    @staticmethod
    def nvmlDeviceGetHandleByUUID(driver: FakeDriver, uuid: Any, handle: Any) -> int:
        for gpu in driver.handles().values():
            if gpu.uuid.encode() == uuid.value:
                return driver.point(handle, gpu)
        return int(pynvml.NVML_ERROR_NOT_FOUND)

    @staticmethod
    def nvmlDeviceGetHandleByPciBusId(driver: FakeDriver, pci: Any, handle: Any) -> int:
        for gpu in driver.gpus:
            if gpu.pci.endswith(pci.value.decode()):
                return driver.point(handle, gpu)
        return int(pynvml.NVML_ERROR_NOT_FOUND)

    @staticmethod
    def nvmlEventSetCreate(driver: FakeDriver, events: Any) -> int:
        return 0

    @staticmethod
    def nvmlEventSetWait(driver: FakeDriver, events: Any, data: Any, milliseconds: Any) -> int:
        assert milliseconds.value == 0, "a reading must not wait for events"
        for gpu in driver.gpus:
            if "nvmlEventSetWait" in gpu.errors:
                return gpu.errors["nvmlEventSetWait"]
            if gpu.xids:
                return _fill(data, None, eventData=gpu.xids.pop(0))
        return int(pynvml.NVML_ERROR_TIMEOUT)


class _Answers:
    """Functions that ask about one card."""

    @staticmethod
    def nvmlDeviceGetName(driver: FakeDriver, gpu: Gpu, buffer: Any, size: Any) -> int:
        buffer.value = gpu.name
        return 0

    @staticmethod
    def nvmlDeviceGetUUID(driver: FakeDriver, gpu: Gpu, buffer: Any, size: Any) -> int:
        buffer.value = gpu.uuid.encode()
        return 0

    @staticmethod
    def nvmlDeviceGetMemoryInfo(driver: FakeDriver, gpu: Gpu, memory: Any) -> int:
        return _fill(memory, None, total=gpu.total, used=gpu.used, free=gpu.total - gpu.used)

    @staticmethod
    def nvmlDeviceGetTemperatureV(driver: FakeDriver, gpu: Gpu, answer: Any) -> int:
        assert answer._obj.version == pynvml.nvmlTemperature_v1
        if gpu.temperature is None:
            return int(NOT_SUPPORTED)
        return _fill(answer, None, temperature=gpu.temperature)

    @staticmethod
    def nvmlDeviceGetTemperature(driver: FakeDriver, gpu: Gpu, sensor: Any, answer: Any) -> int:
        return _fill(answer, gpu.temperature)

    @staticmethod
    def nvmlDeviceGetUtilizationRates(driver: FakeDriver, gpu: Gpu, answer: Any) -> int:
        if gpu.utilization is None:
            return int(NOT_SUPPORTED)
        return _fill(answer, None, gpu=gpu.utilization, memory=1)

    @staticmethod
    def nvmlDeviceGetComputeRunningProcesses(driver: FakeDriver, gpu: Gpu, count: Any, rows: Any) -> int:
        room = count._obj.value
        count._obj.value = len(gpu.processes)
        if len(gpu.processes) > room:
            return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
        for row, (pid, used) in zip(rows or (), gpu.processes, strict=False):
            row.pid, row.usedGpuMemory = pid, _NO_VALUE if used is None else used
        return 0

    @staticmethod
    def nvmlDeviceGetDriverModel(driver: FakeDriver, gpu: Gpu, current: Any, pending: Any) -> int:
        return _fill(current, gpu.driver_model)

    @staticmethod
    def nvmlDeviceGetMigMode(driver: FakeDriver, gpu: Gpu, current: Any, pending: Any) -> int:
        return _fill(current, 0 if gpu.slices is None else 1)

    @staticmethod
    def nvmlDeviceGetMaxMigDeviceCount(driver: FakeDriver, gpu: Gpu, count: Any) -> int:
        return _fill(count, 7)

    @staticmethod
    def nvmlDeviceGetMigDeviceHandleByIndex(driver: FakeDriver, gpu: Gpu, index: Any, handle: Any) -> int:
        if index.value >= len(gpu.slices or ()):
            return int(pynvml.NVML_ERROR_NOT_FOUND)
        return driver.point(handle, (gpu.slices or [])[index.value])

    @staticmethod
    def nvmlDeviceGetGpuInstanceId(driver: FakeDriver, gpu: Gpu, answer: Any) -> int:
        return _fill(answer, gpu.instance[0])

    @staticmethod
    def nvmlDeviceGetComputeInstanceId(driver: FakeDriver, gpu: Gpu, answer: Any) -> int:
        return _fill(answer, gpu.instance[1])

    @staticmethod
    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(driver: FakeDriver, gpu: Gpu, handle: Any) -> int:
        for card in driver.gpus:
            if any(part is gpu for part in card.slices or ()):
                return driver.point(handle, card)
        return int(pynvml.NVML_ERROR_INVALID_ARGUMENT)

    @staticmethod
    def nvmlDeviceGetTotalEccErrors(
        driver: FakeDriver, gpu: Gpu, kind: Any, counter: Any, answer: Any
    ) -> int:
        assert (kind.value, counter.value) == (
            pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            pynvml.NVML_VOLATILE_ECC,
        )
        return _fill(answer, gpu.uncorrected)

    @staticmethod
    def nvmlDeviceGetRemappedRows(driver: FakeDriver, gpu: Gpu, *answers: Any) -> int:
        return _fill(answers[3], None if gpu.remap_failed is None else int(gpu.remap_failed))

    @staticmethod
    def nvmlDeviceRegisterEvents(driver: FakeDriver, gpu: Gpu, kinds: Any, events: Any) -> int:
        assert kinds.value == pynvml.nvmlEventTypeXidCriticalError
        return 0


@contextlib.contextmanager
def installed(driver: FakeDriver) -> Iterator[FakeDriver]:
    """``pynvml`` on top of ``driver`` instead of a loaded library."""
    before = pynvml.nvmlLib, dict(pynvml._nvmlGetFunctionPointer_cache)
    pynvml.nvmlLib = driver
    pynvml._nvmlGetFunctionPointer_cache.clear()
    try:
        yield driver
    finally:
        pynvml.nvmlLib = before[0]
        pynvml._nvmlGetFunctionPointer_cache.clear()
        pynvml._nvmlGetFunctionPointer_cache.update(before[1])
