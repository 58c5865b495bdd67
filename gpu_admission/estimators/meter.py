"""Measuring what one request took, while it ran alone on its device.

Owns the protocol and torch's form of it. Whether a request ran alone is known, and decided,
where leases are granted.
"""

from __future__ import annotations

from typing import Protocol


class PeakMeter(Protocol):
    """Two calls around one request; both may be made from any thread."""

    def start(self) -> int:
        """Forget earlier peaks; the bytes in use now."""
        ...

    def peak(self) -> int:
        """The most bytes in use at once since ``start``."""
        ...


class TorchPeak:
    """Allocated bytes of this process on one CUDA or ROCm device, as torch's allocator counts them.

    Raises ``RuntimeError`` without a torch that is built for one of them.
    """

    def __init__(self, device: int = 0) -> None:
        try:
            import torch
        except ImportError as error:
            raise RuntimeError("TorchPeak needs torch: install gpu-admission[torch]") from error
        if torch.version.cuda is None and torch.version.hip is None:
            raise RuntimeError("TorchPeak needs a torch that is built for CUDA or ROCm: this one is not")
        self._cuda = torch.cuda
        self._device = device

    def start(self) -> int:
        """Forget earlier peaks; the bytes allocated now."""
        self._cuda.reset_peak_memory_stats(self._device)
        allocated: int = self._cuda.memory_allocated(self._device)
        return allocated

    def peak(self) -> int:
        """The most bytes allocated at once since ``start``."""
        peak: int = self._cuda.max_memory_allocated(self._device)
        return peak
