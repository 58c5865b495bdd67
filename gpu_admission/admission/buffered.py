"""The host memory that bodies hold while their requests wait or are read.

Owns the counts and their limit. Not device bytes: those are the ledger's.
"""

from __future__ import annotations

import threading
from types import TracebackType

from gpu_admission.bodies.share import StepShare
from gpu_admission.errors import QueueFull
from gpu_admission.sizes import format_bytes

SHARE = 3 / 4
"""The share of ``max_buffered_bytes`` that requests from one client address may hold: never all of it."""
_SPARE = 8 * 2**20
"""Bytes of a limit of 128 MiB or more that are left for what is not counted: messages, gaps in the heap."""

COPIED_BYTES = 2 * 2**20


class BufferedBytes:
    """Bytes of bodies that were read and not yet taken by the app, and of copies made to read them.

    ``take`` and ``give`` are for the event loop's thread. Copies are made in worker threads too:
    they are counted beside, in ``unpacking``.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._most = limit - _SPARE if limit >= 16 * _SPARE else limit
        self.copied = StepShare(COPIED_BYTES)
        """What one step of the event loop copies of long uploads, all requests together."""
        self.held = 0
        self.unpacking = 0
        self._share = int(limit * SHARE)
        self._of_clients: dict[str, int] = {}
        self._lock = threading.Lock()

    def take(self, size: int, client: str | None = None) -> None:
        """Raises ``QueueFull`` where ``max_buffered_bytes``, or the share of ``client``, would be passed."""
        self.check(size, client)
        if client is not None:
            self._of_clients[client] = self._of_clients.get(client, 0) + size
        self.held += size

    def check(self, size: int, client: str | None = None) -> None:
        """Raise as ``take`` would, and take nothing."""
        if size > self._room():
            raise QueueFull(
                "queue_full",
                f"waiting bodies hold {format_bytes(self.held + self.unpacking)} already: "
                f"max_buffered_bytes={format_bytes(self.limit)}",
            )
        if size > self._room_of(client):
            raise QueueFull(
                "queue_full",
                f"waiting bodies from this client address would hold more than {SHARE:.0%} of "
                f"max_buffered_bytes={format_bytes(self.limit)}",
            )

    def has_room(self, size: int, client: str | None = None) -> bool:
        """Whether ``take`` would succeed."""
        return size <= min(self._room(), self._room_of(client))

    def _room(self) -> int:
        """Bytes that may still be held; below 0 if copies were made meanwhile."""
        return self._most - self.held - self.unpacking

    def _room_of(self, client: str | None) -> int:
        """Bytes of its share that ``client`` may still hold; of no client, all of it."""
        return self._share - self._of_clients.get(client, 0) if client is not None else self._most

    def give(self, size: int, client: str | None = None) -> None:
        self.held -= size
        if client is None:
            return
        left = self._of_clients.get(client, 0) - size
        if left > 0:
            self._of_clients[client] = left
        else:
            self._of_clients.pop(client, None)

    def change_copies(self, size: int) -> None:
        """Count ``size`` bytes of copies, from any thread; a negative size gives them back."""
        with self._lock:
            if size > max(0, self._room()):
                raise QueueFull(
                    "queue_full",
                    f"unpacked bodies need more than max_buffered_bytes={format_bytes(self.limit)}",
                )
            self.unpacking += size


class Copies:
    """The copies that were made to read one body; ``with`` counts them until the block ends."""

    __slots__ = ("_buffer", "_size")

    def __init__(self, buffer: BufferedBytes) -> None:
        self._buffer = buffer
        self._size = 0

    def take(self, size: int) -> None:
        """Raises ``QueueFull``. A negative size gives back."""
        self._buffer.change_copies(size)
        self._size += size

    def forget(self) -> None:
        """They are gone."""
        size, self._size = self._size, 0
        if size:
            self._buffer.change_copies(-size)

    def __enter__(self) -> Copies:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.forget()
