"""A server process of the demo, seen from both sides: started, heard, and ended with its parent.

Owns how the two talk (settings as an argument, lines of facts back) and how one ends when the
other does. What is served belongs to ``server`` and ``workers``.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

import msgspec

from gpu_admission.demo.wall import ENVIRONMENT

STDIN, STDOUT = 0, 1
PATIENCE = 10.0
"""Seconds that a server has to end by itself."""
T = TypeVar("T")


class ServerError(Exception):
    """The server did not start; the reason is on stderr."""


class ServerProcess:
    """``python -m module settings``, which ends with the ``with`` block, or with us."""

    def __init__(self, module: str, settings: msgspec.Struct) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, msgspec.json.encode(settings).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | ENVIRONMENT,
        )

    def __enter__(self) -> ServerProcess:
        return self

    def hear(self, kind: type[T]) -> T:
        """Wait for the next thing that it says. Raises ``ServerError`` when it ends instead."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._end()
            raise ServerError(f"the demo's server ended with status {self._process.returncode}")
        return msgspec.json.decode(line, type=kind)

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._end()

    def _end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def tell(said: msgspec.Struct) -> None:
    """Inside the child: say so to the parent, in one write, as several processes may share the pipe."""
    os.write(STDOUT, msgspec.json.encode(said) + b"\n")


def quieten() -> None:
    """Inside the child: from here on, what is cut off needs no report."""
    logging.getLogger("uvicorn.error").disabled = True


def end_with_parent(stop: Callable[[], None]) -> None:
    """Inside the child: call ``stop`` once the parent is done with us, or has died."""

    def wait() -> None:
        while os.read(STDIN, 1):
            pass
        stop()

    threading.Thread(target=wait, name="parent", daemon=True).start()
