"""An app behind a real uvicorn, in a thread of the test's own process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn


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
        assert started.wait(20)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(20)
        assert not thread.is_alive()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, started: threading.Event) -> None:
        super().__init__(config)
        self._says_started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._says_started.set()
