"""A file of lines that one thread writes in the background, and rotates by size.

Owns the bounded queue to that thread, its life, and what happens when the disk is slow or
fails: lines are left out and counted. What a line says is the caller's.
"""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
import weakref
from collections.abc import Callable
from logging.handlers import RotatingFileHandler
from typing import Any

from gpu_admission.runtime.fork import in_child

logger = logging.getLogger("gpu_admission")
_PATIENCE = 5.0
# A lease that ends during interpreter shutdown finds no thread to write its line, and can't start
# one: waiting for it to begin would never end.
_is_finalizing = sys.is_finalizing


class LineFile:
    """``put`` never waits. ``line`` makes text of what was put, in the writing thread.

    At ``max_bytes`` (0: never) ``path`` becomes ``path.1`` and so on up to ``keep``; at most
    ``max_queued`` lines wait for the disk. The thread starts with the first line, so that an earlier
    fork inherits no half of it, and is started again after a fork, which it does not survive.
    """

    def __init__(
        self, path: str, line: Callable[[Any], str], *, max_bytes: int, keep: int, max_queued: int
    ) -> None:
        self._path = path
        self._line = line
        self._max_bytes = max_bytes
        self._keep = keep
        self._max_queued = max_queued
        self.dropped = 0
        """Lines that were left out."""
        self._make()
        in_child(self._make)

    def _make(self) -> None:
        """What belongs to one process: lines that wait at a fork are the parent's to write."""
        # The collector may end a lease, and so put a line, in the middle of a put: this queue
        # allows for that, and whoever finds the thread being started leaves that to the other.
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def put(self, value: object) -> None:
        """Have ``value`` written soon, or counted as dropped."""
        if self._queue.qsize() >= self._max_queued or _is_finalizing():
            self.dropped += 1
            return
        self._queue.put(value)
        thread = self._thread
        if thread is None or not thread.is_alive():
            self._start()

    def close(self) -> None:
        """Write what waits, for at most a few seconds, and end the thread."""
        thread = self._thread
        if thread is None or not thread.is_alive():
            return
        self._queue.put(None)
        thread.join(_PATIENCE)

    def _start(self) -> None:
        if not self._starting.acquire(blocking=False):
            return
        try:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._write, name="gpu_admission lines", daemon=True)
                self._thread.start()
        finally:
            self._starting.release()

    def _write(self) -> None:
        path = self._path.replace("{pid}", str(os.getpid()))
        file = _File(path, maxBytes=self._max_bytes, backupCount=self._keep, encoding="utf-8", delay=True)
        file.failed = self._fail
        while (value := self._queue.get()) is not None:
            file.handle(logging.makeLogRecord({"msg": self._line(value)}))
        file.close()

    def _fail(self) -> None:
        if not self.dropped:
            logger.exception("%s can't be written: lines are left out", self._path)
        self.dropped += 1


class _File(RotatingFileHandler):
    """The standard library's handler, which reports failures to ``failed`` instead of printing them."""

    failed: Callable[[], None]

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        self.failed()


def closed_with(owner: object, file: LineFile) -> None:
    """Close ``file`` when ``owner`` is gone, or the interpreter ends."""
    weakref.finalize(owner, file.close)
