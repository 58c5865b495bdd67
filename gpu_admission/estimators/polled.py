"""A meter that looks again and again, for what keeps no peak of its own: a device, or a process.

What a meter is, and torch's, is in ``meter``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path


class Polled:
    """The most that ``read`` showed between ``start`` and ``peak``, looked at every few milliseconds."""

    def __init__(self, read: Callable[[], int], *, every: float = 0.002) -> None:
        self._read = read
        self._every = every
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._peak = 0

    def start(self) -> int:
        """Begin to look; what is in use now. Raises ``RuntimeError`` where nothing is shown."""
        self._end()
        now = self._peak = self._read()
        self._stop.clear()
        self._thread = threading.Thread(target=self._look, name="meter", daemon=True)
        self._thread.start()
        return now

    def peak(self) -> int:
        """The most that was in use since ``start``."""
        self._end()
        self._peak = max(self._peak, self._read())
        return self._peak

    def _look(self) -> None:
        while not self._stop.wait(self._every):
            self._peak = max(self._peak, self._read())

    def _end(self) -> None:
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None


def resident(pid: int) -> int:
    """Bytes of anonymous memory of the process ``pid`` (Linux). Raises ``RuntimeError``."""
    return _of_process(pid, "RssAnon")


def data_segment(pid: int) -> int:
    """Bytes that count against its ``RLIMIT_DATA``, touched or not (Linux). Raises ``RuntimeError``."""
    return _of_process(pid, "VmData")


def _of_process(pid: int, name: str) -> int:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError as error:
        raise RuntimeError(f"the memory of process {pid} can't be read: {error.strerror}") from None
    _, _, rest = text.partition(f"{name}:")
    return int(rest.split(maxsplit=1)[0]) * 1024
