"""One worker process that runs one function, call by call, and the parent's handle on it.

Owns what goes over the pipe. Who may call it, and when another takes its place, is the pool's.
"""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from gpu_admission.runtime.fork import in_child

GRACE = 10.0
"""Seconds that a process is given to end by itself."""


class ProcessDied(RuntimeError):
    """A worker process ended while it worked: it was killed, crashed, or ran out of memory."""


class Child:
    """A process that has been spawned, and has run ``start``. Its methods block; one call at a time.

    Raises what ``start`` raised, or ``ProcessDied``.
    """

    def __init__(self, function: Callable[..., Any], start: Callable[[], object] | None, name: str) -> None:
        # Spawned, never forked: the threads and the device context of the parent do not survive a fork.
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        for end in (self._pipe, theirs):
            in_child(end.close)  # who is forked meanwhile would keep it open, and no end be noticed
        self._process = context.Process(target=serve, args=(theirs, function, start), name=name, daemon=True)
        self._is_killed = False
        self._process.start()
        theirs.close()
        try:
            self._receive()
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int | None:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it can be called. To be asked while nothing else is asked of it."""
        return not self._is_killed and self._process.is_alive()

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The function's result. Raises its exception, or ``ProcessDied``."""
        try:
            self._pipe.send((args, kwargs))
        except (BrokenPipeError, ConnectionResetError):
            raise self._died() from None
        return self._receive()

    def kill(self) -> None:
        """End it at once, whatever it is doing. May be called from any thread."""
        self._is_killed = True
        self._process.kill()

    def check(self) -> None:
        """Raises ``ProcessDied`` where the next call would."""
        if not self.is_alive:
            raise self._died()

    def close(self) -> None:
        """End it. It gets ``GRACE`` seconds to do so by itself."""
        self._pipe.close()
        self._process.join(GRACE)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()

    def _receive(self) -> Any:
        try:
            answer = self._pipe.recv_bytes()
        except (EOFError, OSError):  # between two answers, or within one
            raise self._died() from None
        is_error, value = pickle.loads(answer)
        if is_error:
            raise value
        return value

    def _died(self) -> ProcessDied:
        self._process.join(GRACE)
        return ProcessDied(f"{self._process.name} died with exit code {self._process.exitcode}")


def serve(pipe: Connection, function: Callable[..., Any], start: Callable[[], object] | None) -> None:
    """In the child: ``start()``, then ``function`` for each call, until the pipe's other end closes."""
    # Ctrl-C reaches the whole group; the parent says when its children end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not _answer(pipe, lambda: _begin(start)):
        return
    while True:
        try:
            args, kwargs = pipe.recv()
        except EOFError:
            return
        except Exception as error:  # not everything that can be pickled can be unpickled
            pipe.send((True, _portable(error)))
            continue
        _answer(pipe, lambda: function(*args, **kwargs))  # noqa: B023


def _begin(start: Callable[[], object] | None) -> None:
    if start is not None:
        start()


def _answer(pipe: Connection, call: Callable[[], Any]) -> bool:
    """Send what ``call()`` returns or raises; whether it returned."""
    try:
        pipe.send((False, call()))
    except Exception as error:
        pipe.send((True, _portable(error)))
        return False
    return True


def _portable(error: Exception) -> Exception:
    """``error`` with its traceback as a note, or where it does not survive the pipe, its text."""
    error.add_note("in the worker process:\n" + "".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        plain = RuntimeError(f"{type(error).__name__}: {error}")
        plain.__notes__ = error.__notes__
        return plain
    return error
