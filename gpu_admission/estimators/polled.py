"""A meter that polls what keeps no peak of its own: a device, or a process.

The protocol of a meter, and torch's meter, are in ``meter``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from gpu_admission.runtime.fork import in_child

_NEARLY = 0.95
_LATE = 2 / 3
_MOST_RISES = 1000


class Polled:
    """The most that ``read`` showed between ``start`` and ``peak``, looked at every few milliseconds.

    Its one thread sleeps in between. It starts before the first look, since its stack is memory too.
    """

    def __init__(self, read: Callable[[], int], *, every: float = 0.002) -> None:
        self._read = read
        self._every = every
        self._base = 0
        self._began = 0.0
        self._rises: list[tuple[float, int]] = []
        """When more was in use than ever before since ``start``, and how much."""
        self.grows = True
        """Whether its last peak came in the last third of the time that was looked at."""
        self._begin_anew()
        in_child(self._begin_anew)

    def _begin_anew(self) -> None:
        """Made anew in a forked process, where no thread lives on and a lock may stay held for ever."""
        self._begins, self._ends, self._looks = threading.Event(), threading.Event(), threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> int:
        """Begin to look; what is in use now. Raises ``RuntimeError`` where nothing is shown."""
        self._end()
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="meter", daemon=True)
            self._thread.start()
        self._base, self._began, self._rises = self._read(), time.monotonic(), []
        self._ends.clear()
        self._begins.set()
        return self._base

    def peak(self) -> int:
        """The most that was in use since ``start``."""
        self._end()
        self.look()
        ended, most = time.monotonic(), self._most
        enough = self._base + _NEARLY * (most - self._base)
        reached = next((at for at, seen in self._rises if seen >= enough), self._began)
        self.grows = reached - self._began > _LATE * (ended - self._began)
        return most

    @property
    def _most(self) -> int:
        return self._rises[-1][1] if self._rises else self._base

    @property
    def remembered(self) -> int:
        """How many of the moments at which use rose are kept."""
        return len(self._rises)

    def look(self) -> None:
        """Look once more than by the clock."""
        seen = self._read()
        if seen > self._most:
            self._rises.append((time.monotonic(), seen))
            if len(self._rises) > _MOST_RISES:
                del self._rises[:-1:2]

    def _run(self) -> None:
        while self._begins.wait():
            with self._looks:
                while not self._ends.wait(self._every):
                    self.look()

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
