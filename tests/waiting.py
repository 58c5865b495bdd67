"""Waiting for what another thread or process does, with a limit: a condition, or a server that listens."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

import anyio

HOST = "127.0.0.1"
LONGEST = 120.0
"""Seconds that a machine may take for anything: no more is said by it than that a thing happens."""


def until(
    condition: Callable[[], object], longest: float = LONGEST, what: str = "it did not happen"
) -> float:
    """Until ``condition()`` holds: the seconds it took. Raises ``AssertionError(what)`` after ``longest``."""
    turn, began = threading.Event(), time.monotonic()
    while not condition():
        assert time.monotonic() - began < longest, what
        turn.wait(0.01)
    return time.monotonic() - began


async def until_async(condition: Callable[[], object], longest: float = LONGEST) -> float:
    """The same, while other tasks of this event loop go on."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < longest, "it did not happen"
        await anyio.sleep(0.005)
    return time.monotonic() - began


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(port: int, longest: float = LONGEST) -> None:
    """Until somebody listens at ``port``. Raises ``AssertionError`` after ``longest`` seconds."""
    until(lambda: _listens(port), longest)


def _listens(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True
