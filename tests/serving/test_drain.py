"""SIGTERM under real servers: streams end whole, those that wait are served or refused, the process ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.waiting import LONGEST, free_port, until, wait_for

ROOT = Path(__file__).parents[2]
SERVERS = {
    "uvicorn": ["uvicorn", "--log-level", "warning", "--port"],
    "gunicorn": [
        *("gunicorn", "-k", "uvicorn_worker.UvicornWorker"),
        *("--graceful-timeout", "60", "--log-level", "warning", "-b"),
    ],
}
SERVING, REFUSING = "examples.drain:app", "tests.serving.refusing:app"
TOKENS, LONG = 25, 80
"""Ten a second. What is to go on while others wait and are refused must last, on a slow machine too."""


@contextmanager
def running(name: str, app: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    port = free_port()
    where = str(port) if name == "uvicorn" else f"127.0.0.1:{port}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-m", *SERVERS[name], where, app], cwd=ROOT, env=environment
    ) as process:
        try:
            wait_for(port)
            yield process, f"http://127.0.0.1:{port}"
        finally:
            process.kill()


class Client(threading.Thread):
    """Asks for a stream, and notes what came."""

    def __init__(self, url: str, tokens: int = TOKENS) -> None:
        super().__init__()
        self.url = url
        self.tokens = tokens
        self.begun = threading.Event()
        self.status = 0
        self.text = ""

    def run(self) -> None:
        with (
            httpx.Client(timeout=LONGEST) as client,
            client.stream("POST", f"{self.url}/stream", json={"max_tokens": self.tokens}) as response,
        ):
            self.status = response.status_code
            for text in response.iter_text():
                self.text += text
                self.begun.set()


def until_waiting(url: str, count: int) -> None:
    until(lambda: httpx.get(f"{url}/health/ready", timeout=60).json()["waiting"] == count)


@pytest.mark.slow
@pytest.mark.parametrize("app", [SERVING, REFUSING])
@pytest.mark.parametrize("name", SERVERS)
def test_sigterm_lets_streams_end_whole_and_serves_or_refuses_those_that_wait(name: str, app: str) -> None:
    if name == "gunicorn":
        pytest.importorskip("uvicorn_worker")
    words = [f"token-{number}" for number in range(LONG)]
    with running(name, app) as (process, url):
        streams = [Client(url, LONG) for _ in range(2)]
        for stream in streams:
            stream.start()
        for stream in streams:
            assert stream.begun.wait(LONGEST)
        waiters = [Client(url) for _ in range(3)]
        for waiter in waiters:
            waiter.start()
        until_waiting(url, 3)
        process.send_signal(signal.SIGTERM)
        for waiter in waiters:
            waiter.join(LONGEST)
        if app == REFUSING:
            assert all(waiter.status == 503 and '"draining"' in waiter.text for waiter in waiters)
            assert all(stream.is_alive() for stream in streams), "they were refused while the streams go on"
        else:
            assert all(waiter.status == 200 and waiter.text.split() == words[:TOKENS] for waiter in waiters)
        for stream in streams:
            stream.join(LONGEST)
        assert all(stream.status == 200 and stream.text.split() == words for stream in streams)
        assert process.wait(LONGEST) in (0, -signal.SIGTERM)
        with pytest.raises(httpx.ConnectError):
            httpx.post(f"{url}/stream", json={}, timeout=20)
