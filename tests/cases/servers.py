"""Real servers, each in a thread with an event loop of its own, that stop when the test is done."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import granian.server.embed
import hypercorn.asyncio
import hypercorn.config
import hypercorn.trio
import trio
import uvicorn
from granian.constants import Interfaces

from gpu_admission.types import ASGIApp
from tests.waiting import wait_for

Stop = Callable[[], object]


class Running:
    """A server that answers on ``port``; ``stop`` asks it to shut down, ``join`` waits until it has."""

    def __init__(self, thread: threading.Thread, port: int, stop: Stop) -> None:
        self.port = port
        self.stop = stop
        self._thread = thread

    def join(self, timeout: float = 20) -> None:
        self._thread.join(timeout)
        assert not self._thread.is_alive(), "the server does not stop"

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)


def free_socket() -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", 0))
    return listener


def run_uvicorn(app: ASGIApp, **options: Any) -> Running:
    listener = free_socket()
    config = uvicorn.Config(app, log_level="critical", **{"lifespan": "off", **options})
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: server.run([listener]))
    thread.start()
    return Running(thread, listener.getsockname()[1], lambda: setattr(server, "should_exit", True))


def run_hypercorn(app: ASGIApp) -> Running:
    listener = free_socket()
    config = hypercorn.config.Config()
    port = listener.getsockname()[1]
    config.bind = [f"fd://{listener.detach()}"]
    config.errorlog = logging.getLogger("tests.hypercorn")
    stopping = asyncio.Event()
    loop = asyncio.new_event_loop()

    def serve() -> None:
        served = hypercorn.asyncio.serve(app, config, shutdown_trigger=stopping.wait)  # type: ignore[arg-type]
        loop.run_until_complete(served)
        loop.close()

    thread = threading.Thread(target=serve)
    thread.start()
    return Running(thread, port, lambda: loop.call_soon_threadsafe(stopping.set))


def run_hypercorn_on_trio(app: ASGIApp) -> Running:
    listener = free_socket()
    config = hypercorn.config.Config()
    port = listener.getsockname()[1]
    config.bind = [f"fd://{listener.detach()}"]
    config.errorlog = logging.getLogger("tests.hypercorn")
    started: list[tuple[trio.lowlevel.TrioToken, trio.Event]] = []

    async def serve() -> None:
        stopping = trio.Event()
        started.append((trio.lowlevel.current_trio_token(), stopping))
        await hypercorn.trio.serve(app, config, shutdown_trigger=stopping.wait)  # type: ignore[arg-type]

    def stop() -> None:
        (token, stopping) = started[0]
        token.run_sync_soon(stopping.set)

    thread = threading.Thread(target=lambda: trio.run(serve))
    thread.start()
    return Running(thread, port, stop)


def run_granian(app: ASGIApp) -> Running:
    with free_socket() as listener:
        port = listener.getsockname()[1]
    loop = asyncio.new_event_loop()
    server: list[Any] = []

    async def serve() -> None:
        server.append(
            granian.server.embed.Server(app, port=port, interface=Interfaces.ASGINL, log_enabled=False)
        )
        await server[0].serve()

    def run() -> None:
        loop.run_until_complete(serve())
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    return Running(thread, port, lambda: loop.call_soon_threadsafe(server[0].stop))


SERVERS: dict[str, Callable[[ASGIApp], Running]] = {
    "uvicorn-h11": lambda app: run_uvicorn(app, http="h11"),
    "uvicorn-httptools": lambda app: run_uvicorn(app, http="httptools"),
    "uvicorn-uvloop": lambda app: run_uvicorn(app, loop="uvloop"),
    "hypercorn": run_hypercorn,
    "hypercorn-trio": run_hypercorn_on_trio,
    "granian": run_granian,
}


@contextmanager
def serving(name: str, app: ASGIApp) -> Iterator[Running]:
    """The server called ``name`` with ``app``, once it answers."""
    running = SERVERS[name](app)
    try:
        wait_for(running.port)
        yield running
    finally:
        running.stop()
        running.join()
