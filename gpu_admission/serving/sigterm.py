"""A server's own shutdown, with the queue refused first. Owns one signal handler while an app lives."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol


class Drained(Protocol):
    """An admission, for all that is called here."""

    def drain(self) -> None: ...


@contextmanager
def drain_at_sigterm(admission: Drained) -> Iterator[None]:
    """In an app's lifespan: at SIGTERM call ``admission.drain()``, then do what the server does by itself.

    Servers stop listening and let running requests end, but those in the queue would go on waiting for
    their turn. With this they get 503 ``draining`` at once, and ``/health/ready`` fails. Outside of the
    main thread, where Python takes no signals, it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    servers_own = signal.getsignal(signal.SIGTERM) or signal.SIG_DFL  # None: set by no Python code
    ours = _First(admission.drain, servers_own)
    signal.signal(signal.SIGTERM, ours)
    try:
        yield
    finally:
        ours.is_over = True
        _take_back()


class _First:
    """A handler: ``call()`` while its app lives, and then what the signal did before."""

    def __init__(self, call: Callable[[], None], then: Any) -> None:
        self._call = call
        self.then = then
        self.is_over = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if not self.is_over:
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
