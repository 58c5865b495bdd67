"""An app's startup and shutdown, run as a server runs them, but without a server.

Owns the server's side of the lifespan protocol, and its limit of time. What is looked at between the
two is the caller's business.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import anyio

from gpu_admission.types import ASGIApp, Message

T = TypeVar("T")


def run_started(app: ASGIApp, look: Callable[[str], T], *, limit: float) -> T:
    """Run the startup of ``app``, then ``look(failure)``, then its shutdown; what ``look`` returned.

    ``failure`` is a sentence, or empty if the app has started or has no lifespan. Startup and
    shutdown may take ``limit`` seconds each, on the main thread also if they block the event loop.
    """
    return anyio.run(_run, app, look, limit)


async def _run(app: ASGIApp, look: Callable[[str], T], limit: float) -> T:
    async with anyio.create_task_group() as group:
        lifespan = _Lifespan(limit)
        group.start_soon(lifespan.run, app)
        failure = await lifespan.start()
        try:
            found = look(failure)
        finally:
            if not failure:
                await lifespan.stop()
            group.cancel_scope.cancel()
    return found


class _Lifespan:
    """One run of an app's lifespan, seen from the server."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._asked = False
        self._failure = ""
        self._started, self._stopping, self._ended = anyio.Event(), anyio.Event(), anyio.Event()

    async def run(self, app: ASGIApp) -> None:
        scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": {}}
        try:
            await app(scope, self._receive, self._send)
        except (Exception, SystemExit) as error:
            # One that fails before it has asked for anything has no lifespan, as servers see it.
            if self._asked and not self._failure:
                self._failure = f"{type(error).__name__}: {error}"
        finally:
            self._started.set()
            self._ended.set()

    async def start(self) -> str:
        """Why the app has not started; empty if it has."""
        with _alarm(self._limit + 1), anyio.move_on_after(self._limit) as waited:
            await self._started.wait()
        return f"it took longer than {self._limit:g} s" if waited.cancelled_caught else self._failure

    async def stop(self) -> None:
        self._stopping.set()
        with _alarm(self._limit + 1), anyio.move_on_after(self._limit):
            await self._ended.wait()

    async def _receive(self) -> Message:
        if not self._asked:
            self._asked = True
            return {"type": "lifespan.startup"}
        await self._stopping.wait()
        return {"type": "lifespan.shutdown"}

    async def _send(self, message: Message) -> None:
        kind = message["type"]
        if kind == "lifespan.startup.failed":
            # Frameworks send a whole traceback, whose last line says what is wrong.
            said = message.get("message", "").strip().splitlines() or ["it does not say why"]
            self._failure = self._failure or said[-1]
        if kind.startswith("lifespan.startup."):
            self._started.set()
        if kind.startswith("lifespan.shutdown."):
            self._ended.set()


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Raise ``TimeoutError`` in what blocks the main thread for longer, where the system can do that."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(*_: object) -> None:
        raise TimeoutError(f"it blocked the event loop for longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
