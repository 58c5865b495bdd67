"""The host memory that waiting bodies hold together. Not device bytes: those are the ledger's."""

from __future__ import annotations

import threading

from gpu_admission.errors import QueueFull
from gpu_admission.sizes import format_bytes


class BufferedBytes:
    """Bytes of bodies that were read and not yet taken by the app.

    ``take`` and ``give`` are for the event loop's thread; what is unpacked in worker threads
    is counted beside, in ``unpacking``.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self.unpacking = 0
        self._lock = threading.Lock()

    def take(self, size: int) -> None:
        """Raises ``QueueFull`` when ``max_buffered_bytes`` would be passed."""
        if self.held + self.unpacking + size > self.limit:
            raise QueueFull(
                "queue_full",
                f"waiting bodies hold {format_bytes(self.held + self.unpacking)} already: "
                f"max_buffered_bytes={format_bytes(self.limit)}",
            )
        self.held += size

    def give(self, size: int) -> None:
        self.held -= size

    def take_unpacked(self, size: int) -> None:
        """The same from any thread; negative sizes give back."""
        with self._lock:
            if size > 0 and self.held + self.unpacking + size > self.limit:
                raise QueueFull(
                    "queue_full",
                    f"unpacked bodies need more than max_buffered_bytes={format_bytes(self.limit)}",
                )
            self.unpacking += size
