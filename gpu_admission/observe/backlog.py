"""Events that wait to be worked off in a thread.

The garbage collector may call an observer (by closing a generator that held a lease) in the
middle of anything, even of a metrics library that holds a lock it can't take twice. So observers
that count must take no lock when called: they append here, and a thread, or whoever reads the
numbers, works it off.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence

from gpu_admission.runtime.fork import in_child
from gpu_admission.types import Event

logger = logging.getLogger("gpu_admission")


class Backlog:
    """``work(events)`` is called with what has been added, every ``every`` seconds once started.

    ``add`` is the deque's own ``append``: it takes no lock. ``work`` is called with an empty
    list too, as a tick, and by one thread at a time.
    """

    def __init__(self, work: Callable[[Sequence[Event]], object], *, every: float = 1.0) -> None:
        self._events: deque[Event] = deque()
        self.add = self._events.append
        self._work = work
        self._every = every
        self._begin_anew()
        in_child(self._begin_anew)

    def _begin_anew(self) -> None:
        """Also in a forked process, which has no thread, and where one that is gone may hold the lock."""
        self._lock = threading.RLock()
        self._works = False
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._events.clear()  # those are counted there

    def start(self) -> None:
        """Start working events off; in a forked process, call it again to start there too."""
        if self._works:
            return
        self._works = True
        me = weakref.ref(self)
        threading.Thread(
            target=_keep_working,
            args=(me, self._wakes, self._every),
            name="gpu-admission-metrics",
            daemon=True,
        ).start()
        atexit.register(_work_off, me)

    def hurry(self) -> None:
        """Have the thread work off what is there at once. Takes no lock that may not be taken twice."""
        self._wakes.put(None)

    def work_off(self) -> None:
        """Work off what is there now."""
        with self._lock:
            events = []
            while self._events:
                events.append(self._events.popleft())
            try:
                self._work(events)
            except Exception:
                logger.exception("%d events could not be counted", len(events))


def _keep_working(backlog: weakref.ref[Backlog], wakes: queue.SimpleQueue[None], every: float) -> None:
    while _work_off(backlog):
        with contextlib.suppress(queue.Empty):
            wakes.get(timeout=every)


def _work_off(backlog: weakref.ref[Backlog]) -> bool:
    current = backlog()
    if current is None:
        return False
    current.work_off()
    return True
