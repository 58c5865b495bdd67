"""A meter that polls what keeps no peak of its own: a device, or a process.

The protocol of a meter, and torch's meter, are in ``meter``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from gpu_admission.runtime.fork import in_child


class Polled:
    """The most that ``read`` showed between ``start`` and ``peak``, looked at every few milliseconds.

    Its one thread sleeps in between. It starts before the first look, since its stack is memory too.
    """

    def __init__(self, read: Callable[[], int], *, every: float = 0.002) -> None:
        self._read = read
        self._every = every
        self._begin_anew()
        in_child(self._begin_anew)

    def _begin_anew(self) -> None:
        """Made anew in a forked process, where no thread lives on and a lock may stay held for ever."""
        self._peak = 0
        self._begins, self._ends, self._looks = threading.Event(), threading.Event(), threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> int:
        """Begin to look; what is in use now. Raises ``RuntimeError`` where nothing is shown."""
        self._end()
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="meter", daemon=True)
            self._thread.start()
        now = self._peak = self._read()
        self._ends.clear()
        self._begins.set()
        return now

    def peak(self) -> int:
        """The most that was in use since ``start``."""
        self._end()
        self._peak = max(self._peak, self._read())
        return self._peak

    def _run(self) -> None:
        while self._begins.wait():
            with self._looks:
                while not self._ends.wait(self._every):
                    self._peak = max(self._peak, self._read())

    def _end(self) -> None:
        """Stop looking; waits for a look that is under way."""
        self._begins.clear()
        self._ends.set()
        with self._looks:
            pass


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
