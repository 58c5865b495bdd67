"""The host memory that waiting bodies hold together. Not device bytes: those are the ledger's."""

from __future__ import annotations

import threading

from gpu_admission.errors import QueueFull
from gpu_admission.sizes import format_bytes


class BufferedBytes:
    """Bytes of bodies that were read and not yet taken by the app; thread-safe."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self._lock = threading.Lock()

    def take(self, size: int) -> None:
        """Raises ``QueueFull`` when ``max_buffered_bytes`` would be passed."""
        with self._lock:
            if self.held + size > self.limit:
                raise QueueFull(
                    "queue_full",
                    f"waiting bodies hold {format_bytes(self.held)} already: "
                    f"max_buffered_bytes={format_bytes(self.limit)}",
                )
            self.held += size

    def give(self, size: int) -> None:
        with self._lock:
            self.held -= size
