"""This process among those that share: its name, its host, its clock, its thread."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from functools import partial

logger = logging.getLogger("gpu_admission")

_AFTER_FAILURE = 1.0


boot_seconds = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
"""Seconds since the host started: one clock for all its processes, that runs on in sleep."""


def new_name() -> str:
    """A name that no other process has, here or on another host."""
    return secrets.token_hex(6)


def process_of(member: str) -> str:
    """The process whose membership is called ``member``."""
    return member.partition(".")[0]


def host_name() -> str:
    return socket.gethostname()[:128]


def pid() -> int:
    return os.getpid()


class Pulse:
    """One thread that calls ``beat`` again and again: a blocked event loop must not look dead.

    ``beat`` returns the seconds to wait for the next, and ``wait`` waits them or less.
    """

    def __init__(self, beat: Callable[[], float], wait: Callable[[float], None]) -> None:
        self._beat = beat
        self._wait = wait
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="gpu_admission.shared", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End after the current wait; whoever stops it also wakes it."""
        self._stopped = True

    def join(self, seconds: float) -> None:
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(seconds)

    def _run(self) -> None:
        while not self._stopped:
            self._wait(self._beat_anyway())

    def _beat_anyway(self) -> float:
        """Whatever goes wrong, this thread goes on: without it the process would be taken for dead."""
        try:
            return self._beat()
        except Exception:
            logger.exception("a beat of the shared budget failed; the next follows in %g s", _AFTER_FAILURE)
            return _AFTER_FAILURE
