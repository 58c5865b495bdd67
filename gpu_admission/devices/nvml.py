"""NVIDIA devices through the driver's management library: cards, and MIG slices.

Owns reading one device field by field, and coming back after the library has failed. The
library is loaded at the first reading in each process: never at import or construction,
and anew after a fork. Which device was asked for: ``nvml_cards`` and ``cuda_order``; what
is ours: ``nvml_processes``; what is broken: ``nvml_faults``.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from gpu_admission.devices import torch as torch_devices
from gpu_admission.devices.host import HostMemory
from gpu_admission.devices.mps import allowance
from gpu_admission.devices.nvml_cards import (
    cuda_index,
    find_handle,
    is_wddm,
    list_cards,
    name_of,
    uuid_of,
    whole_card,
)
from gpu_admission.devices.nvml_faults import FaultWatch
from gpu_admission.devices.nvml_processes import our_bytes
from gpu_admission.types import Device, DeviceReading

FIRST_RETRY = 1.0
LONGEST_RETRY = 60.0
_NAMES = re.compile(
    r"(cuda|nvml):\d+|(GPU|MIG)-[\w/-]+|([0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.0", re.IGNORECASE
)


class NvmlDevice:
    """One NVIDIA GPU or MIG slice.

    ``device`` names it: a number or ``"cuda:1"`` as this process's CUDA counts (visibility and
    order heeded), a UUID or its beginning (``"GPU-8932f937"``, ``"MIG-..."``), ``"nvml:2"`` as
    ``nvidia-smi`` counts, or a PCI bus id. ``wddm_share`` is the part of a card's memory to
    plan with under Windows' WDDM (and WSL), where the driver promises memory that it may
    have to page out. ``host`` is read where the GPU's memory is the machine's.
    """

    def __init__(
        self,
        device: int | str = 0,
        *,
        wddm_share: float = 0.5,
        host: Device | None = None,
        env: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 0 < wddm_share <= 1:
            raise ValueError(f"wddm_share must be above 0 and at most 1, got {wddm_share!r}")
        self._asked = _checked_name(device)
        self._wddm_share = wddm_share
        self._host = HostMemory() if host is None else host
        self._env = os.environ if env is None else env
        self._clock = clock
        self._name = ""
        self._key = ""
        self._forget()

    def _forget(self) -> None:
        """Forget what was found in the parent process."""
        self._pid = os.getpid()
        self._found: _Found | None = None
        self._retry_at = 0.0
        self._retry_in = FIRST_RETRY
        self._error = ""

    @property
    def name(self) -> str:
        """The model, and the device as it was asked for; only the latter before the first reading."""
        return f"{self._name} ({self._asked})" if self._name else self._asked

    @property
    def key(self) -> str:
        """The UUID (MIG id of a slice); before the first reading, how it was asked for."""
        return self._key or self._asked

    @property
    def torch_name(self) -> str:
        """``"cuda:N"`` in this process; empty while unknown, or where CUDA does not show it."""
        index = None if self._found is None else self._found.cuda_index
        return "" if index is None else f"cuda:{index}"

    def read(self) -> DeviceReading:
        """A new reading; what the driver does not report is ``None``, and ``error`` says why."""
        now = self._clock()
        if self._pid != os.getpid():
            self._forget()
        if (self._found is None or self._found.lost) and now >= self._retry_at:
            self._find(now)
        if self._found is None:
            return DeviceReading(taken_at=now, error=self._error)
        return self._look(self._found, now)

    def _find(self, now: float) -> None:
        if self._found is not None:
            self._found.close()
        try:
            import pynvml  # type: ignore[import-untyped]

            pynvml.nvmlInit()
            self._found = found = _Found(pynvml, self._asked, self._env, self._wddm_share)
        except Exception as error:  # a missing module, an NVMLError, a broken library
            self._found, self._error = None, reason_of(error)
            self._back_off(now)
            return
        self._name, self._key = found.name, found.uuid

    def _look(self, found: _Found, now: float) -> DeviceReading:
        fields, missing = found.fields(self._host)
        if not found.lost:
            self._retry_in = FIRST_RETRY
        elif now >= self._retry_at:
            self._back_off(now)
        return DeviceReading(taken_at=now, error="; ".join(missing) or None, **fields)

    def _back_off(self, now: float) -> None:
        self._retry_at = now + self._retry_in
        self._retry_in = min(LONGEST_RETRY, self._retry_in * 2)

    def __repr__(self) -> str:
        return f"NvmlDevice({self._asked!r})"


class _Found:
    """A device that was found in this process, and how to ask about it."""

    def __init__(self, nvml: Any, asked: str, env: Mapping[str, str], wddm_share: float) -> None:
        self._nvml = nvml
        cards = list_cards(nvml)
        self._handle = find_handle(nvml, asked, cards, env)
        self._card = whole_card(nvml, self._handle)
        self.uuid = uuid_of(nvml, self._handle) or asked
        self.name = name_of(nvml, self._handle)
        self.cuda_index = cuda_index(self.uuid, cards, env)
        self.lost = False
        """The library, or the card, has stopped answering."""
        self._share = wddm_share if is_wddm(nvml, self._card) else None
        self._allowance = allowance(self.cuda_index, env)
        self._watch = FaultWatch(nvml, self._card)
        self._missing: list[str] = []
        self._gone: tuple[str, ...] = ()

    def fields(self, host: Device) -> tuple[dict[str, Any], list[str]]:
        """The fields of a reading, and a text for each that is missing."""
        self._missing, self._gone, self.lost = [], (), False
        fields = self._memory(host)
        fields["temperature"] = self._ask("temperature", self._temperature)
        fields["utilization"] = self._ask("utilization", self._utilization)
        fields["faults"] = self._gone + self._watch.faults()
        return fields, self._missing

    def close(self) -> None:
        """Let go of the library, so that the next start is a real one."""
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:
            return

    def _ask(self, what: str, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except (self._nvml.NVMLError, AttributeError) as error:
            self._missing.append(f"{what}: {reason_of(error)}")
            return None

    def _memory(self, host: Device) -> dict[str, Any]:
        nvml = self._nvml
        try:
            memory = nvml.nvmlDeviceGetMemoryInfo(self._handle)
        except nvml.NVMLError_NotSupported:
            return self._unified(host)
        except nvml.NVMLError as error:
            self._memory_failed(error)
            return {}
        if not memory.total:
            return self._unified(host)
        fields = {"total": memory.total, "free": memory.free, "used": memory.used}
        if self._share is not None:
            fields["usable"] = int(memory.total * self._share)
        if self._allowance is not None:
            fields["allowance"] = self._allowance
        fields["ours"] = self._ask("processes", lambda: self._ours(memory.total))
        fields |= self._allocator(0)
        return fields

    def _memory_failed(self, error: Exception) -> None:
        nvml = self._nvml
        self._missing.append(f"memory: {reason_of(error)}")
        self.lost = not isinstance(error, nvml.NVMLError_NoPermission)
        if isinstance(error, (nvml.NVMLError_GpuIsLost, nvml.NVMLError_ResetRequired)):
            self._gone = (reason_of(error),)

    def _unified(self, host: Device) -> dict[str, Any]:
        """The machine's memory. The driver counts our GPU memory separately from our other memory."""
        reading = host.read()
        fields = {"total": reading.total, "free": reading.free, "used": reading.used}
        if reading.error is not None:
            self._missing.append(reading.error)
        on_gpu = self._ask("processes", lambda: self._ours(reading.total))
        if reading.ours is None:
            return fields
        if on_gpu is not None:
            fields["ours"] = reading.ours + on_gpu
        return fields | self._allocator(reading.ours)

    def _allocator(self, besides: int) -> dict[str, int]:
        told = None if self.cuda_index is None else torch_devices.cuda_allocator(self.cuda_index)
        return {} if told is None else {"reserved": besides + told[0], "allocated": besides + told[1]}

    def _ours(self, total: int | None) -> int | None:
        processes = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        return our_bytes(processes, total=total)

    def _temperature(self) -> float:
        """Temperature of the card, also for a slice; by the older call if the driver lacks the newer one."""
        nvml = self._nvml
        try:
            return float(nvml.nvmlDeviceGetTemperatureV(self._card, nvml.NVML_TEMPERATURE_GPU))
        except (nvml.NVMLError_FunctionNotFound, AttributeError):
            return float(nvml.nvmlDeviceGetTemperature(self._card, nvml.NVML_TEMPERATURE_GPU))

    def _utilization(self) -> float:
        percent: int = self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu
        return percent / 100


def _checked_name(device: int | str) -> str:
    if isinstance(device, bool) or not isinstance(device, (int, str)):
        raise TypeError(
            f"device must be a CUDA index or a text such as 'cuda:0', not {type(device).__name__}"
        )
    name = f"cuda:{device}" if isinstance(device, int) else device
    if _NAMES.fullmatch(name) is None:
        raise ValueError(
            f"device={device!r} names no GPU: write 0, 'cuda:0', 'nvml:0', 'GPU-<uuid>', 'MIG-<uuid>' "
            "or a PCI bus id"
        )
    return name


def reason_of(error: Exception) -> str:
    """One line for people: what the driver, or Python, calls it."""
    text = str(error)
    return text[:300] if text else type(error).__name__
