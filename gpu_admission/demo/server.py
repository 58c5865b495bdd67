"""The server process: loads the model, warms up, raises the wall, serves until its stdin ends.

``ServerProcess`` is the parent's handle on it; ``main`` runs inside the child. Both ends of
their conversation (settings as an argument, one line of facts back) are here and nowhere else.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from gpu_admission.demo.protect import Protection, Unprotected
from gpu_admission.demo.shape import Shape
from gpu_admission.demo.wall import ENVIRONMENT, Meter, wall_for

if TYPE_CHECKING:
    import uvicorn

    from gpu_admission.demo.engine import Engine
    from gpu_admission.demo.model import Decoder

STDIN = 0
PATIENCE = 10.0
"""Seconds that a server has to end by itself."""
EngineName = Literal["batch", "threads"]


class ServerError(Exception):
    """The server did not start; what it had to say is on stderr."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a server process is told."""

    engine: EngineName = "batch"
    protection: Protection = Unprotected()
    room: int = 2**33
    """Bytes beyond the loaded model; by default a wall that nothing meets."""
    most: int = 48
    """Requests that may be in the engine at once: what it warms up for."""
    shape: Shape = Shape()


class Ready(msgspec.Struct, frozen=True):
    """What the server says once it listens."""

    port: int
    device: str
    wall: str


class ServerProcess:
    """A server in a process of its own, which ends with the ``with`` block, or with us."""

    def __init__(self, settings: Settings) -> None:
        command = [sys.executable, "-m", "gpu_admission.demo.server"]
        self._process = subprocess.Popen(
            [*command, msgspec.json.encode(settings).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | ENVIRONMENT,
        )

    def __enter__(self) -> Ready:
        """Wait until it listens. Raises ``ServerError`` when it ends instead."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._end()
            raise ServerError(f"the demo's server ended with status {self._process.returncode}")
        return msgspec.json.decode(line, type=Ready)

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


def main(settings: Settings) -> None:
    """Inside the child: load, warm up, raise the wall, say so, serve."""
    import torch

    from gpu_admission.demo.app import build_app
    from gpu_admission.demo.model import Decoder

    device = "cuda" if torch.cuda.is_available() else "cpu"
    wall = wall_for(device)
    engine = _engine(settings.engine, Decoder(settings.shape, device=device))
    engine.warm_up(settings.most)
    listener = socket.create_server(("127.0.0.1", 0))
    meter = Meter(wall)
    app = settings.protection.wrap(build_app(engine, meter, context=settings.shape.context))
    server = _web_server(app)
    threading.Thread(target=_stop_when_parent_does, args=[server], daemon=True).start()
    wall.raise_at(settings.room)  # last: from here on nothing is set up any more
    ready = Ready(listener.getsockname()[1], device, wall.kind)
    print(msgspec.json.encode(ready).decode(), flush=True)
    server.run(sockets=[listener])
    engine.stop()
    meter.stop()


def _engine(name: EngineName, model: Decoder) -> Engine:
    from gpu_admission.demo.engine import BatchEngine, ThreadEngine

    return BatchEngine(model) if name == "batch" else ThreadEngine(model)


def _web_server(app: Any) -> uvicorn.Server:
    import uvicorn

    return uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=1))


def _stop_when_parent_does(server: uvicorn.Server) -> None:
    """Its end of the pipe closes when it is done with us, and also when it dies."""
    while os.read(STDIN, 1):
        pass
    logging.getLogger("uvicorn.error").disabled = True  # what is cut off now is no news
    server.should_exit = True


if __name__ == "__main__":
    try:
        main(msgspec.json.decode(sys.argv[1], type=Settings))
    except OSError as error:  # there is no wall to be had here
        sys.exit(str(error))
