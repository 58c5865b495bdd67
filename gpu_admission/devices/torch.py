"""Devices as a running torch sees them: CUDA and ROCm, XPU, MPS.

torch is never imported and never initialised from here: a process that does not use it pays
nothing, and no context of hundreds of megabytes is made to look at a number. What is
counted: ``reserved`` and ``allocated`` are this process's allocator, ``free`` is the whole
device's. NVIDIA cards are better read through ``NvmlDevice``, which adds these figures.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from gpu_admission.devices.mps import allowance
from gpu_admission.sizes import parse_bytes
from gpu_admission.types import Device, DeviceReading

_KINDS = ("cuda", "xpu", "mps")


class Unreadable(Exception):
    """torch can't say now; the text says why."""


class TorchDevice:
    """``device`` is what torch calls it: ``"cuda:0"`` (also on ROCm), ``"xpu:1"``, ``"mps"``."""

    def __init__(self, device: str = "cuda:0", *, clock: Callable[[], float] = time.monotonic) -> None:
        match = re.fullmatch(r"([a-z]+)(?::(\d+))?", device) if isinstance(device, str) else None
        if match is None or match[1] not in _KINDS:
            raise ValueError(f"device must be 'cuda:N', 'xpu:N' or 'mps', got {device!r}")
        self._kind = match[1]
        self._index = int(match[2] or 0)
        self._clock = clock
        self._uuid = ""
        self._model = ""

    @property
    def torch_name(self) -> str:
        return self._kind if self._kind == "mps" else f"{self._kind}:{self._index}"

    @property
    def name(self) -> str:
        return f"{self._model} ({self.torch_name})" if self._model else self.torch_name

    @property
    def key(self) -> str:
        """``GPU-<uuid>`` once torch has told it, else torch's name."""
        return self._uuid or self.torch_name

    def read(self) -> DeviceReading:
        """A new reading; all fields are ``None`` while torch has not initialised the device."""
        now = self._clock()
        try:
            return DeviceReading(taken_at=now, **self._fields(running_torch(self._kind)))
        except Unreadable as error:
            return DeviceReading(taken_at=now, error=str(error))
        except Exception as error:  # a poisoned context raises from every call, in many types
            return DeviceReading(taken_at=now, error=f"torch: {type(error).__name__}: {str(error)[:200]}")

    def _fields(self, torch: Any) -> Mapping[str, Any]:
        if self._kind == "mps":
            return _mps_fields(torch)
        backend = getattr(torch, self._kind)
        if self._index >= backend.device_count():
            raise Unreadable(
                f"torch shows {backend.device_count()} {self._kind} devices: there is no {self.torch_name}"
            )
        self._remember(backend.get_device_properties(self._index))
        return _accelerator_fields(torch, backend, self._index)

    def _remember(self, properties: Any) -> None:
        self._model = str(properties.name)
        uuid = getattr(properties, "uuid", None)
        self._uuid = f"GPU-{uuid}" if uuid else ""

    def warm_up_and_hold(self, size: int | str) -> int:
        """Commit ``size`` bytes now and keep them in torch's allocator, for this process alone.

        For cards whose driver promises more than it has (Windows WDDM): what is committed
        early can't be taken by a desktop later. The app's own allocations then come out of
        it; ``empty_cache`` would give it back. Call it in the process that serves, never
        before a fork: it initialises the device. Returns the bytes reserved; torch's own
        out-of-memory error comes through.
        """
        wanted = parse_bytes(size, name="size")
        import torch

        backend = getattr(torch, self._kind)
        block = torch.zeros(wanted, dtype=torch.uint8, device=self.torch_name)
        backend.synchronize()
        del block
        return _mps_reserved(backend) if self._kind == "mps" else _allocator(backend, self._index)[0]

    def __repr__(self) -> str:
        return f"TorchDevice({self.torch_name!r})"


def running_torch(kind: str) -> Any:
    """The torch module, when this process has loaded it and initialised ``kind``. Raises ``Unreadable``."""
    torch = sys.modules.get("torch")
    if torch is None:
        raise Unreadable("torch is not loaded in this process")
    ready = torch.backends.mps.is_available if kind == "mps" else getattr(torch, kind).is_initialized
    if not ready():
        raise Unreadable(f"torch has not initialised {kind} in this process")
    return torch


def _accelerator_fields(torch: Any, backend: Any, index: int) -> Mapping[str, Any]:
    total = int(backend.get_device_properties(index).total_memory)
    reserved, allocated = _allocator(backend, index)
    fields: dict[str, Any] = {"total": total, "reserved": reserved, "allocated": allocated}
    limit = allowance(index, os.environ)
    if limit is not None and backend is torch.cuda:
        fields["allowance"] = limit
    if not reserved:
        # Asking an idle device for its free memory would make a context on it.
        return {**fields, "error": "this process has nothing on the device yet: its free memory is not asked"}
    free, _ = backend.mem_get_info(index)
    fields |= {"free": int(free), "used": total - int(free)}
    if getattr(torch.version, "hip", None):
        fields |= {
            "temperature": _maybe(lambda: float(backend.temperature(index))),
            "utilization": _maybe(lambda: backend.utilization(index) / 100),
        }
    return fields


def _maybe(ask: Callable[[], float]) -> float | None:
    with contextlib.suppress(Exception):
        return ask()
    return None


def _allocator(backend: Any, index: int) -> tuple[int, int]:
    """(reserved, in use) bytes. Blocks that still wait for a stream count as in use."""
    stats = backend.memory_stats_as_nested_dict(index)
    if not stats:
        return 0, 0
    return stats["reserved_bytes"]["all"]["current"], stats["active_bytes"]["all"]["current"]


def _mps_reserved(backend: Any) -> int:
    return int(backend.driver_allocated_memory())


def _mps_fields(torch: Any) -> Mapping[str, Any]:
    """Metal recommends a working set to each process separately: other processes are not part of it."""
    total = int(torch.mps.recommended_max_memory())
    reserved = _mps_reserved(torch.mps)
    return {
        "total": total,
        "used": reserved,
        "free": max(0, total - reserved),
        "ours": reserved,
        "reserved": reserved,
        "allocated": int(torch.mps.current_allocated_memory()),
    }


def cuda_allocator(index: int) -> tuple[int, int] | None:
    """(reserved, in use) bytes of this process on ``cuda:index``; ``None`` before torch initialises it."""
    with contextlib.suppress(Exception):
        return _allocator(running_torch("cuda").cuda, index)
    return None


def cuda_uuids() -> list[str] | None:
    """UUIDs in CUDA's order, bare, where torch has initialised CUDA in this process."""
    with contextlib.suppress(Exception):
        cuda = running_torch("cuda").cuda
        return [str(cuda.get_device_properties(index).uuid) for index in range(cuda.device_count())]
    return None


def empty_cache() -> None:
    """Give torch's reusable cache back to the device, where torch runs. Waits for its kernels."""
    for kind in _KINDS:
        with contextlib.suppress(Unreadable, AttributeError):
            getattr(running_torch(kind), kind).empty_cache()


def on_device(device: Device) -> contextlib.AbstractContextManager[object]:
    """A context in which ``device`` is torch's current one, in the calling thread.

    Does nothing for devices that are not torch's (host memory, fixed, MPS).
    """
    kind, _, index = getattr(device, "torch_name", "").partition(":")
    if not index:
        return contextlib.nullcontext()
    import torch

    current: contextlib.AbstractContextManager[object] = getattr(torch, kind).device(int(index))
    return current
