"""A server's own shutdown, of which the queue hears in time. Owns one signal handler while an app lives."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, Literal, Protocol

from gpu_admission.settings import checks


class Drained(Protocol):
    """An admission, for all that is called here."""

    def drain(self, waiting: Literal["refuse", "serve"] = "refuse") -> None: ...


@contextmanager
def drain_at_sigterm(admission: Drained, waiting: Literal["serve", "refuse"] = "serve") -> Iterator[None]:
    """In an app's lifespan: at SIGTERM call ``admission.drain(waiting)``, then do what the server does.

    ``/health/ready`` fails from then on. Servers stop listening and let requests end that have reached
    them. Those that wait are served too, so that none is lost where workers share one socket and are
    restarted one by one: nothing else would take them. What still waits at the end of the block, as jobs
    do, is refused there. With ``waiting="refuse"`` the queue gets 503 ``draining`` at once, for a balancer
    that sends such requests to another host. Outside of the main thread, where Python takes no signals,
    it does nothing. Raises ``ValueError`` for another ``waiting``.
    """
    checks.word("serve", "refuse")("waiting", waiting)
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    servers_own = signal.getsignal(signal.SIGTERM) or signal.SIG_DFL  # None: set by no Python code
    ours = _First(partial(admission.drain, waiting), servers_own)
    signal.signal(signal.SIGTERM, ours)
    try:
        yield
    finally:
        ours.is_over = True
        _take_back()
        if ours.has_come:
            admission.drain()


class _First:
    """A handler: ``call()`` while its app lives, and then what the signal did before."""

    def __init__(self, call: Callable[[], None], then: Any) -> None:
        self._call = call
        self.then = then
        self.is_over = False
        self.has_come = False
        """Whether the signal has come while the app lived."""

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if not self.is_over:
            self.has_come = True
            self._call()
        if callable(self.then):
            self.then(number, frame)
        elif self.then is signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)


def _take_back() -> None:
    """Put back what the signal did before the apps that are over. Apps of one process end in any order."""
    found: Any = signal.getsignal(signal.SIGTERM)
    if isinstance(found, _First):
        while isinstance(found, _First) and found.is_over:
            found = found.then
        signal.signal(signal.SIGTERM, found)
