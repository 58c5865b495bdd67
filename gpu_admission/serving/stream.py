"""A device and a CUDA stream for one thread, where torch and CUDA are there.

Owns everything that instances ask of torch. It is imported only where a device is named, or
when the process has loaded it itself.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any

from gpu_admission.devices.torch import cuda_allocator


def devices_for(names: Sequence[str] | None, count: int) -> list[str]:
    """The device of each of ``count`` instances: ``names`` in turn, or all that torch shows."""
    if names is None:
        names = _visible()
    elif isinstance(names, str) or not names:
        raise TypeError("devices must be a list of names such as ['cuda:0', 'cuda:1']")
    for name in names:
        if not isinstance(name, str) or not re.fullmatch(r"cpu|cuda:\d+", name):
            raise ValueError(f"devices must be 'cpu' or 'cuda:N', got {name!r}")
    return [names[place % len(names)] for place in range(count)]


def _visible() -> list[str]:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return ["cpu"]
    return [f"cuda:{index}" for index in range(torch.cuda.device_count())]


class Stream:
    """Makes ``device``, and a stream of its own, current in the thread that creates it, from then on."""

    def __init__(self, device: str) -> None:
        self._index = int(device.removeprefix("cuda:")) if device != "cpu" else None
        self._stream: Any = None
        if self._index is not None:
            import torch

            torch.cuda.set_device(self._index)
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            torch.cuda.set_stream(self._stream)

    def settle(self) -> None:
        """Wait until all that was started on it is done; a fault shows here, not in a later call."""
        if self._stream is not None:
            self._stream.synchronize()

    def allocated(self) -> int | None:
        """Bytes of this process on the device; ``None`` = not known."""
        if self._index is None:
            return None
        counted = cuda_allocator(self._index)
        return None if counted is None else counted[1]
