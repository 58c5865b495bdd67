"""The memory wall: a hard limit on what the loaded model may take beside its weights.

On a CUDA device it is torch's own limit for the process. Without one, the data segment of
the process plays the part of VRAM: past ``RLIMIT_DATA`` the kernel gives no more, and torch
raises its real allocation error. Measuring lives here too, since both count from the same zero.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Protocol

ENVIRONMENT = {
    # Everything from 128 KiB up is mapped and unmapped on its own, so that what is freed is
    # free; what is smaller (Python's objects) comes out of a heap that is reserved beforehand
    # and never shrinks. So the wall is met by tensors, as VRAM is, and not by the web server.
    "MALLOC_MMAP_THRESHOLD_": str(128 * 1024),
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
    "MALLOC_ARENA_MAX": "1",
    "PYTHONMALLOC": "malloc",
    # One core plays the GPU, the other one runs the clients.
    "OMP_NUM_THREADS": "1",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
}
"""Of the process behind the wall; must be set before it starts."""

STATUS = "/proc/self/status"
HEAP_RESERVE = 48 * 2**20
HOLE = 128 * 1024 - 256


class Wall(Protocol):
    """A limit in bytes, counted from what was in use when it was raised."""

    kind: str

    def raise_at(self, room: int) -> None:
        """From now on at most ``room`` more bytes. Raises ``OSError`` where that can't be had."""
        ...

    def used(self) -> int:
        """Bytes in use now beyond those at the time of ``raise_at``."""
        ...


class DataSegmentWall:
    """``RLIMIT_DATA`` of this process (Linux): private writable memory, mapped or not yet touched."""

    kind = "RLIMIT_DATA of the server process"

    def __init__(self) -> None:
        if not Path(STATUS).exists():
            raise OSError("without a CUDA GPU the demo needs Linux: only there can memory be limited")
        self._status = os.open(STATUS, os.O_RDONLY)
        self._baseline = 0
        self._pins: list[bytearray] = []

    def raise_at(self, room: int) -> None:
        import resource

        self._reserve_heap()
        self._baseline = self._data()
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (self._baseline + room, hard))
        if _allocates(room + 2**20):
            raise OSError("this kernel does not enforce RLIMIT_DATA: no memory wall to be had")

    def used(self) -> int:
        return self._data() - self._baseline

    def _reserve_heap(self) -> None:
        """Grow the heap, then free every other block: holes for small objects, none for a tensor."""
        enough = self._data() + 2 * HEAP_RESERVE
        blocks = []
        while self._data() < enough:
            blocks.append(bytearray(HOLE))
        self._pins = blocks[::2]

    def _data(self) -> int:
        """What the kernel compares with the limit."""
        _, _, rest = os.pread(self._status, 4096, 0).partition(b"VmData:")
        return int(rest.split(maxsplit=1)[0]) * 1024


class CudaWall:
    """``torch.cuda.set_per_process_memory_fraction`` on the first CUDA device."""

    kind = "torch.cuda.set_per_process_memory_fraction"

    def __init__(self) -> None:
        self._baseline = 0

    def raise_at(self, room: int) -> None:
        import torch

        torch.cuda.empty_cache()
        self._baseline = torch.cuda.memory_allocated()
        total = torch.cuda.get_device_properties(0).total_memory
        limit = torch.cuda.memory_reserved() + room
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total))

    def used(self) -> int:
        import torch

        return torch.cuda.memory_allocated() - self._baseline


def wall_for(device: str) -> Wall:
    """The wall that ``device`` (``"cuda"`` or ``"cpu"``) has."""
    return CudaWall() if device == "cuda" else DataSegmentWall()


class Meter:
    """A thread that writes down, every few milliseconds, the time, bytes in use and CPU seconds so far."""

    def __init__(self, wall: Wall, *, every: float = 0.005) -> None:
        self.samples: list[tuple[float, int, float]] = []
        self._wall = wall
        self._every = every
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="meter", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            self.samples.append((time.monotonic(), self._wall.used(), time.process_time()))


def _allocates(size: int) -> bool:
    try:
        bytearray(size)
    except MemoryError:
        return False
    return True
