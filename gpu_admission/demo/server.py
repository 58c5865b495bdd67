"""The engine's process: loads the model, warms up, raises the wall, serves until its stdin ends."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from gpu_admission.demo.process import ServerProcess, end_with_parent, quieten, tell
from gpu_admission.demo.protect import Protection, Unprotected
from gpu_admission.demo.shape import Shape
from gpu_admission.demo.wall import Meter, wall_for

if TYPE_CHECKING:
    import uvicorn

    from gpu_admission.demo.engine import Engine
    from gpu_admission.demo.model import Decoder

EngineName = Literal["batch", "threads"]
STACK = 512 * 1024
"""Bytes; 8 MiB are usual, and no stack is in VRAM."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a server process is told."""

    engine: EngineName = "batch"
    protection: Protection = Unprotected()
    room: int = 2**33
    """Bytes beyond the loaded model; by default a wall that nothing meets."""
    most: int = 48
    """Requests that may be in the engine at once: what it warms up for."""
    page: int = 0
    """Tokens that a cache grows by; 0: it is allocated whole at its start."""
    shape: Shape = Shape()


class Ready(msgspec.Struct, frozen=True):
    """What the server says once it listens."""

    port: int
    device: str
    wall: str


@contextmanager
def serve(settings: Settings) -> Iterator[Ready]:
    """A server in a process of its own, once it listens. Raises ``ServerError``."""
    with ServerProcess("gpu_admission.demo.server", settings) as process:
        yield process.hear(Ready)


def main(settings: Settings) -> None:
    """Inside the child: load, warm up, raise the wall, say so, serve."""
    import torch

    from gpu_admission.demo.app import build_app
    from gpu_admission.demo.model import Decoder

    device = "cuda" if torch.cuda.is_available() else "cpu"
    wall = wall_for(device)
    engine = _engine(settings.engine, Decoder(settings.shape, device=device, page=settings.page))
    engine.warm_up(settings.most)
    threading.stack_size(STACK)  # of the threads that come later: here it counts against the wall
    listener = socket.create_server(("127.0.0.1", 0))
    meter = Meter(wall)
    app = settings.protection.wrap(build_app(engine, meter, context=settings.shape.context))
    server = _web_server(app)
    end_with_parent(lambda: _stop(server))
    wall.raise_at(settings.room)  # last: from here on nothing is set up any more
    tell(Ready(listener.getsockname()[1], device, wall.kind))
    server.run(sockets=[listener])
    engine.stop()
    meter.stop()


def _engine(name: EngineName, model: Decoder) -> Engine:
    from gpu_admission.demo.engine import BatchEngine, ThreadEngine

    return BatchEngine(model) if name == "batch" else ThreadEngine(model)


def _web_server(app: Any) -> uvicorn.Server:
    import uvicorn

    return uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on", timeout_graceful_shutdown=1))


def _stop(server: uvicorn.Server) -> None:
    quieten()
    server.should_exit = True


if __name__ == "__main__":
    try:
        main(msgspec.json.decode(sys.argv[1], type=Settings))
    except OSError as error:  # there is no wall to be had here
        sys.exit(str(error))
