"""Web processes in front of the engine's: real uvicorn workers that accept from one socket.

Each has the protection that it is told, and passes on what that lets in. Four of them in
front of one card are the usual way to serve; whose bytes they count is what differs.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial

import httpx
import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gpu_admission.demo.process import ServerError, ServerProcess, end_with_parent, quieten, tell
from gpu_admission.demo.protect import Protection
from gpu_admission.demo.trace import PATH, WORKER
from gpu_admission.types import ASGIApp

_SETTINGS = "DEMO_WORKERS"
"""Where a worker finds what it is told: uvicorn starts it, and hands it nothing."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the workers are told; ``engine`` is the port of the engine's process."""

    count: int
    engine: int
    protection: Protection


class Listening(msgspec.Struct, frozen=True):
    """Where the socket will be."""

    port: int


class Started(msgspec.Struct, frozen=True):
    """One more worker accepts, or says why it can't: uvicorn would start another in its place, for ever."""

    pid: int
    error: str = ""


@contextmanager
def serve(settings: Settings) -> Iterator[int]:
    """The port of so many workers, once all of them accept. Raises ``ServerError``."""
    with ServerProcess("gpu_admission.demo.workers", settings) as process:
        port = process.hear(Listening).port
        for _ in range(settings.count):
            if error := process.hear(Started).error:
                raise ServerError(f"a web worker of the demo did not start: {error}")
        yield port


def main(settings: Settings, factory: str = "gpu_admission.demo.workers:build") -> None:
    """Inside the child: one socket, and uvicorn's own supervisor of workers with the app of ``factory``."""
    import uvicorn

    os.environ[_SETTINGS] = msgspec.json.encode(settings).decode()
    port = _free_port()
    tell(Listening(port))
    end_with_parent(partial(os.kill, os.getpid(), signal.SIGTERM))
    uvicorn.run(
        factory,
        factory=True,
        port=port,
        workers=settings.count,
        log_level="error",
        timeout_graceful_shutdown=1,
    )


def build(around: Callable[[ASGIApp], ASGIApp] = lambda app: app) -> ASGIApp:
    """Inside a worker: its app. ``around`` is put between the protection and what passes requests on."""
    settings = msgspec.json.decode(os.environ[_SETTINGS], type=Settings)
    end_with_parent(quieten)
    http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{settings.engine}", timeout=None)
    try:
        return settings.protection.wrap(around(passing_on(http, lambda: tell(Started(os.getpid())))))
    except Exception as error:
        tell(Started(os.getpid(), str(error)))
        raise


def passing_on(http: httpx.AsyncClient, started: Callable[[], None]) -> Starlette:
    """An app that asks ``http``, and answers once it has: by then the engine has freed the memory."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        started()
        async with http:
            yield

    async def complete(request: Request) -> Response:
        answer = await http.post(PATH, content=await request.body())
        headers = {"content-type": answer.headers["content-type"], WORKER: str(os.getpid())}
        return Response(answer.content, answer.status_code, headers)

    return Starlette(routes=[Route(PATH, complete, methods=["POST"])], lifespan=lifespan)


def _free_port() -> int:
    """uvicorn binds the socket that its workers share itself, and does not tell which port it got."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Settings))
