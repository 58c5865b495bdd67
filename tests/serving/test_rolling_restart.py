"""Workers on one socket, restarted one by one under a queue: no request is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.waiting import LONGEST, free_port, until, wait_for

ROOT = Path(__file__).parents[2]
WORKERS, CLIENTS, MOST = 3, 56, 100


@contextmanager
def workers(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "tests.serving.restarted:app", f"--workers={WORKERS}"]
    environment = os.environ | {
        "SHARED": str(folder / "gpu"),
        "NOTES": str(folder / "notes"),
        "PYTHONPATH": str(ROOT),
    }
    with subprocess.Popen(
        [*command, "--timeout-worker-healthcheck=120", f"--port={port}", "--log-level=warning"],
        env=environment,
        cwd=ROOT,
    ) as process:
        try:
            wait_for(port)
            yield process, f"http://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(LONGEST)


def ask(http: httpx.Client, served: Counter[str]) -> Counter[int]:
    """What was answered until all workers are new ones. ``served``: by each worker, for all clients."""
    statuses: Counter[int] = Counter()
    while len(served) < 2 * WORKERS and statuses.total() < MOST:
        try:
            answer = http.post("/work", content=b"{}")
        except (httpx.ReadError, httpx.RemoteProtocolError):
            continue  # uvicorn hung up on a connection of which it had read nothing
        statuses[answer.status_code] += 1
        served[answer.text] += answer.status_code == 200
    return statuses


@pytest.mark.slow
def test_no_request_is_lost_where_workers_are_restarted_under_a_queue(tmp_path: Path) -> None:
    """Each on a connection of its own. One that the server closed before it had read the request is none."""
    served: Counter[str] = Counter()
    limits = httpx.Limits(max_connections=None)
    with (
        workers(tmp_path) as (process, url),
        httpx.Client(base_url=url, timeout=600, headers={"connection": "close"}, limits=limits) as http,
        ThreadPoolExecutor(CLIENTS) as pool,
    ):
        clients = [pool.submit(ask, http, served) for _ in range(CLIENTS)]
        until(lambda: http.get("/health/ready").json()["waiting"] >= CLIENTS // 2)
        process.send_signal(signal.SIGHUP)
        answers = sum((client.result(900) for client in clients), Counter[int]())
    assert set(answers) == {200}, answers
    noted = Counter((tmp_path / "notes").read_text().split())
    assert noted["taken"] == noted["200"] == answers[200], "whatever a worker has taken is answered"
    assert len(served) == 2 * WORKERS, "each worker was replaced while others waited"
