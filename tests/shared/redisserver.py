"""A real Redis server of the test's own, to be harmed. No test lives here."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import free_port, until

HAS_SERVER = shutil.which("redis-server") is not None
needs_server = pytest.mark.skipif(not HAS_SERVER, reason="redis-server is not installed")


class Server:
    """``redis-server`` on a port of its own; ``options`` as on its command line."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.options = options
        self.port = free_port()
        folder.mkdir(exist_ok=True)
        self.start()

    @property
    def address(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0?name=gpu0"

    def start(self) -> None:
        command = ["redis-server", "--port", str(self.port), "--save", "", "--dir", str(self.folder)]
        command += ["--repl-diskless-sync-delay", "0"]  # else a replica waits 5 s for others
        self.process = subprocess.Popen([*command, *self.options], stdout=subprocess.DEVNULL)
        until(self._answers, what="redis-server did not start")

    def _answers(self) -> bool:
        from redis.exceptions import RedisError

        with contextlib.suppress(OSError, RedisError), self.client() as client:
            client.ping()
            return True
        return False

    def client(self) -> Any:
        import redis

        return redis.Redis(port=self.port, socket_timeout=60)

    def do(self, *command: Any) -> Any:
        with self.client() as client:
            return client.execute_command(*command)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.resume()
            self.process.terminate()
            self.process.wait()
