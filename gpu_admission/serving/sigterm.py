"""A server's own shutdown, with the queue refused first. Owns one signal handler while an app lives."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol


class Drained(Protocol):
    """An admission, for all that is called here."""

    def drain(self) -> None: ...


@contextmanager
def drain_at_sigterm(admission: Drained) -> Iterator[None]:
    """In an app's lifespan: at SIGTERM ``admission.drain()``, and then what the server does by itself.

    Servers stop listening and let running requests end, but those in the queue would only wait for
    their turn. With it they hear 503 ``draining`` at once, and ``/health/ready`` says no. Outside of the
    main thread, where Python takes no signals, it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    servers_own = signal.getsignal(signal.SIGTERM) or signal.SIG_DFL  # None: set by no Python code
    signal.signal(signal.SIGTERM, _first(admission.drain, servers_own))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, servers_own)


def _first(call: Callable[[], None], then: object) -> Callable[[int, FrameType | None], None]:
    def handle(number: int, frame: FrameType | None) -> None:
        call()
        if callable(then):
            then(number, frame)
        elif then is signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    return handle
