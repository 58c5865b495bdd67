"""Requests a second through a real uvicorn: the same echo app, bare and behind each middleware.

Owns the servers (``python -m tests.bench.server KIND NAME PORT LOOP HTTP`` is one) and the load on
them: wrk where it is installed, else a client in asyncio. Loopback only. Beside the rates stands the
processor time that the server took for each request: on a busy machine that is the steadier of the two.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.bench.asgi import CHAT, CHAT_PATH
from tests.bench.contenders import BARE, CHAT_READ, NOTHING, ON_BASE, Nothing, NothingOnBase, ours
from tests.bench.sidebyside import table
from tests.waiting import HOST, free_port, wait_for

CONNECTIONS, SECONDS, ROUNDS = 16, 1, 7
SETUPS = {
    "raw ASGI, uvloop and httptools": ("raw", "uvloop", "httptools"),
    "raw ASGI, asyncio and h11": ("raw", "asyncio", "h11"),
    "FastAPI, uvloop and httptools": ("fastapi", "uvloop", "httptools"),
}
NAMES = (BARE, NOTHING, CHAT_READ, ON_BASE)
_LUA = """
wrk.method = "POST"
wrk.path = "{path}"
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Authorization"] = "Bearer x"
wrk.body = '{body}'
"""


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """The body of the request, read and sent back."""
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Turn(BaseModel):
    role: str
    content: str


class Chat(BaseModel):
    model: str
    messages: list[Turn]
    max_tokens: int | None = None


def fastapi() -> ASGIApp:
    """The same as an endpoint with a validated body and answer."""
    app = FastAPI()

    @app.post(CHAT_PATH)
    async def chat(body: Chat) -> Chat:
        return body

    return app


def served(kind: str, name: str) -> ASGIApp:
    app = echo if kind == "raw" else fastapi()
    wrapped: dict[str, Callable[[], ASGIApp]] = {
        BARE: lambda: app,
        NOTHING: lambda: Nothing(app),
        CHAT_READ: lambda: ours(app)[0],
        ON_BASE: lambda: NothingOnBase(app),
    }
    return wrapped[name]()


def run() -> str:
    client = "wrk" if shutil.which("wrk") else "a client in asyncio (wrk is missing)"
    rows = [row for setup, parts in SETUPS.items() for row in _rows(setup, _measured(*parts))]
    title = f"Through uvicorn: 2 kB chat echoed, {CONNECTIONS} connections of {client}"
    header = [
        "app",
        "behind",
        "requests/s",
        "of the bare app",
        "µs of processor a request",
        "bare app's part",
    ]
    return table(title, header, rows)


def _rows(setup: str, found: Mapping[str, Load]) -> Iterator[list[str]]:
    bare = found[BARE]
    for name, one in found.items():
        rate, cpu = one.rate / bare.rate, bare.cpu / one.cpu
        yield [setup, name, f"{one.rate:,.0f}", f"{rate:.0%}", f"{one.cpu * 1e6:.0f}", f"{cpu:.0%}"]


def _measured(*setup: str) -> dict[str, Load]:
    with contextlib.ExitStack() as stack:
        servers = {name: stack.enter_context(_server(name, *setup)) for name in NAMES}
        found: dict[str, list[Load]] = {name: [] for name in NAMES}
        for _ in range(ROUNDS):
            for name, (process, port) in servers.items():
                found[name].append(loaded(process.pid, port))
        return {name: Load(*map(statistics.median, zip(*each, strict=True))) for name, each in found.items()}


@contextlib.contextmanager
def _server(name: str, kind: str, loop: str, http: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    port = free_port()
    command = [sys.executable, "-m", "tests.bench.server", kind, name, str(port), loop, http]
    with subprocess.Popen(command) as process:
        try:
            wait_for(port)
            load(port)  # warm
            yield process, port
        finally:
            process.terminate()


class Load(NamedTuple):
    """What a server did under load: requests a second, and seconds of processor for each."""

    rate: float
    cpu: float


def loaded(pid: int, port: int) -> Load:
    before = processor_seconds(pid)
    rate = load(port)
    return Load(rate, (processor_seconds(pid) - before) / (rate * SECONDS))


def processor_seconds(pid: int) -> float:
    """That a process has used; not a number where there is no ``/proc``."""
    stat = Path(f"/proc/{pid}/stat")
    if not stat.exists():
        return math.nan
    user, system = stat.read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def load(port: int) -> float:
    """Requests a second that the server at ``port`` answers with 200."""
    return _wrk(port) if shutil.which("wrk") else asyncio.run(_client(port))


def _wrk(port: int) -> float:
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(_LUA.format(path=CHAT_PATH, body=CHAT.decode()))
        script.flush()
        command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{SECONDS}s", "-s", script.name]
        command.append(f"http://{HOST}:{port}")
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=SECONDS + 30)
    found = re.search(r"Requests/sec:\s+([\d.]+)", done.stdout)
    if found is None or "Non-2xx" in done.stdout or "Socket errors" in done.stdout:
        raise RuntimeError(f"the load failed:\n{done.stdout}{done.stderr}")
    return float(found[1])


async def _client(port: int) -> float:
    end = time.monotonic() + SECONDS
    counts = await asyncio.gather(*(_connection(port, end) for _ in range(CONNECTIONS)))
    return sum(counts) / SECONDS


async def _connection(port: int, end: float) -> int:
    head = f"POST {CHAT_PATH} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(CHAT)}\r\n\r\n".encode() + CHAT
    reader, writer = await asyncio.open_connection(HOST, port)
    count = 0
    while time.monotonic() < end:
        writer.write(request)
        answer = await reader.readuntil(b"\r\n\r\n")
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"the load failed: {answer!r}")
        await reader.readexactly(_content_length(answer))
        count += 1
    writer.close()
    return count


def _content_length(head: bytes) -> int:
    """Of an answer: an endpoint that writes JSON anew writes it shorter than it came."""
    found = re.search(rb"(?i)\r\ncontent-length: *(\d+)\r\n", head)
    if found is None:
        raise RuntimeError(f"an answer without a Content-Length: {head!r}")
    return int(found[1])


def _serve(kind: str, name: str, port: str, loop: Any, http: Any) -> None:
    app = served(kind, name)
    uvicorn.run(app, host=HOST, port=int(port), loop=loop, http=http, access_log=False, log_level="warning")


if __name__ == "__main__":
    _serve(*sys.argv[1:])
