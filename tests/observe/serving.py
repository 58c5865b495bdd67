"""An app behind a real uvicorn, in a thread of the test's own process, and a client that hangs up."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import uvicorn

from tests.waiting import LONGEST


@contextmanager
def served(app: Any, *, port: int = 0) -> Iterator[str]:
    """The address of ``app`` while it is served on ``port`` of this machine, or on a free one."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", port))
        started = threading.Event()
        config = uvicorn.Config(app, log_level="error", loop="asyncio", timeout_graceful_shutdown=1)
        server = _Server(config, started)
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        assert started.wait(LONGEST)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(LONGEST)
        assert not thread.is_alive()


@contextmanager
def asking(url: str, path: str, body: Any) -> Iterator[None]:
    """A client that has asked, reads no answer, and hangs up at the end of the block."""
    with closing(http.client.HTTPConnection(url.removeprefix("http://"))) as connection:
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        yield


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, started: threading.Event) -> None:
        super().__init__(config)
        self._says_started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._says_started.set()
