"""The decision log: one JSON line for each request, written behind its back.

Owns the line's fields, the bounded queue to the one thread that writes, and the rotation.
A request never waits for the disk: what the queue can't take is counted and left out.
No line holds a body, a header, a raw path or a key. ``gpu-admission replay`` reads it.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
import weakref
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TypeAlias

import msgspec

from gpu_admission.sizes import parse_bytes
from gpu_admission.types import Event

logger = logging.getLogger("gpu_admission")


class Decision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line. Bytes and seconds; a field that says nothing is left out."""

    arrival: float
    """Unix time at which it was asked."""
    decision: str
    """``admitted``, ``refused`` or ``disconnected``."""
    route: str
    lane: str
    bytes: int = 0
    """The estimate: what it was charged when it came."""
    reason: str = ""
    """Of a refusal; in shadow mode what would have been said."""
    status: int = 0
    waited: float = 0.0
    held: float = 0.0
    """How long it held its bytes."""
    held_bytes: int = 0
    """What it held at the end: less or more than ``bytes`` after a resize."""
    peak: int | None = None
    outcome: str = ""
    device: str = ""
    lease: int = 0


_Line: TypeAlias = "Event | None"


class DecisionLog:
    """An observer that writes a line for each request when it has ended, been refused, or left.

    ``path`` may hold ``{pid}``: processes must not share a file, as each turns it over by
    itself, at ``max_bytes``, keeping the last ``keep`` files as ``path.1``, ``path.2`` and so
    on. At most ``max_queued`` lines wait for the disk; ``dropped`` counts the others. Raises
    ``FileNotFoundError`` when the directory does not exist, ``TypeError``/``ValueError`` for
    options.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_bytes: int | str = "64MiB",
        keep: int = 5,
        max_queued: int = 10_000,
    ) -> None:
        for name, value, least in (("keep", keep, 0), ("max_queued", max_queued, 1)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} must be an int, not {type(value).__name__}")
            if value < least:
                raise ValueError(f"{name} must be {least} or more, got {value}")
        self._path = os.fspath(path)
        self._max_bytes = parse_bytes(max_bytes, name="max_bytes")
        if not Path(self._path).parent.is_dir():
            raise FileNotFoundError(f"path: there is no directory {str(Path(self._path).parent)!r}")
        self._keep = keep
        self._queue: queue.Queue[_Line] = queue.Queue(max_queued)
        self._would: dict[int, str] = {}
        """What shadow mode said of leases that are open."""
        self._writer: weakref.finalize[..., DecisionLog] | None = None
        self._starting = threading.Lock()
        self.dropped = 0
        """Lines that were left out because the disk did not keep up, or failed."""

    def __call__(self, event: Event) -> None:
        if event.kind == "shadow" and event.reason:
            self._would[event.lease] = event.reason
        if event.kind not in ("refused", "disconnected", "released"):
            return
        would = self._would.pop(event.lease, "") if event.lease else ""
        if would:
            event = msgspec.structs.replace(event, reason=would)
        if self._writer is None:
            self._start()
        try:
            self._queue.put_nowait(event)
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """Write what is queued, and end the thread. It starts anew with the next event."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer()

    def _start(self) -> None:
        """Here and not at construction, so that a fork in between takes no half of a thread along."""
        with self._starting:
            if self._writer is not None:
                return
            file = _File(self._path.replace("{pid}", str(os.getpid())), self._max_bytes, self._keep, self._drop)
            thread = threading.Thread(target=_write, args=(self._queue, file), daemon=True)
            thread.name = "gpu_admission decision log"
            thread.start()
            self._writer = weakref.finalize(self, _stop, self._queue, thread)

    @property
    def _drop(self) -> weakref.WeakMethod[...]:
        ...
