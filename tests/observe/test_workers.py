"""Four uvicorn workers and one scrape: sums are right, and a killed worker takes its leases with it."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.waiting import LONGEST, until

pytestmark = pytest.mark.slow

WORKERS = 4
GIB = 2**30


class Server:
    """A uvicorn with several workers in multiprocess mode."""

    def __init__(self, port: int, folder: Path) -> None:
        self._port = port
        self._folder = folder
        self._held: list[http.client.HTTPResponse] = []

    def _ask(self, method: str, path: str) -> http.client.HTTPResponse:
        client = http.client.HTTPConnection("127.0.0.1", self._port, timeout=LONGEST)
        client.request(method, path, headers={"Connection": "close"})
        return client.getresponse()

    def hold(self) -> int:
        """Start a request that holds its lease; the process that it runs in."""
        answer = self._ask("POST", "/hold")
        assert answer.status == 200
        self._held.append(answer)
        return int(answer.readline())

    def answer(self) -> int:
        """The process that has answered a request, once answers may be given."""
        answer = self._ask("POST", "/answer")
        assert answer.status == 200
        return int(answer.read())

    def let_them_answer(self) -> None:
        (self._folder / "may_answer").touch()

    def workers(self) -> set[int]:
        """The processes that report their budgets."""
        return {int(path.stem.rpartition("_")[2]) for path in self._folder.glob("gauge_livesum_*.db")}

    def scrape(self) -> dict[tuple[str, str], float]:
        """All samples, summed over the labels but ``outcome``."""
        text = self._ask("GET", "/metrics/").read().decode()
        samples: dict[tuple[str, str], float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                assert "pid" not in sample.labels
                key = (sample.name.removeprefix("gpu_admission_"), sample.labels.get("outcome", ""))
                samples[key] = samples.get(key, 0.0) + sample.value
        return samples

    def hang_up(self) -> None:
        for answer in self._held:
            answer.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "tests.observe.workers_app:app", f"--workers={WORKERS}"]
    process = subprocess.Popen(
        [*command, f"--port={port}", "--log-level=warning", "--timeout-graceful-shutdown=60"],
        env=os.environ
        | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "MAY_ANSWER": str(tmp_path / "may_answer")},
        cwd=Path(__file__).parents[2],
    )
    running = Server(port, tmp_path)
    try:
        until(lambda: _answers(port))
        yield running
    finally:
        running.hang_up()
        process.send_signal(signal.SIGINT)
        process.wait(LONGEST)


def _answers(port: int) -> bool:
    with socket.socket() as trying:
        return trying.connect_ex(("127.0.0.1", port)) == 0


def is_gone(process: int) -> bool:
    """Dead, and its parent has noticed."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


def test_one_scrape_is_right_for_all_workers_also_after_one_was_killed_with_a_lease(server: Server) -> None:
    def sees(name: str, expected: float, outcome: str = "") -> Callable[[], bool]:
        return lambda: server.scrape().get((name, outcome)) == expected

    # every worker tells of its budget, also those that no request has reached
    until(sees("capacity_bytes", WORKERS * 10 * GIB))
    held = [server.hold()]
    while len(held) < 2:
        try:
            held.append(server.hold())
        except AssertionError:
            continue  # the same worker once more: its budget is full
    until(sees("in_use_bytes", 12 * GIB))
    before = server.scrape()
    assert before["requests_total", "admitted"] == 2
    os.kill(held[0], signal.SIGKILL)
    until(lambda: is_gone(held[0]))
    after = server.scrape()
    assert after["in_use_bytes", ""] == 6 * GIB, "the first scrape without it is right"
    assert after["running_requests", ""] == after["vllm:num_requests_running", ""] == 1
    assert after["leases_lost_total", ""] == 1
    assert after["requests_total", "admitted"] == 2
    # the worker that takes its place counts again, and the loss is not counted twice
    until(sees("capacity_bytes", WORKERS * 10 * GIB))
    assert server.scrape()["leases_lost_total", ""] == 1
    server.hang_up()
    until(sees("in_use_bytes", 0))
    until(sees("leases_ended_total", 1, "client"))


def test_a_worker_that_a_sigterm_ends_has_lost_none_of_the_requests_that_it_answered(server: Server) -> None:
    until(lambda: server.scrape().get(("capacity_bytes", "")) == WORKERS * 10 * GIB)
    requests = [ThreadPoolExecutor(1).submit(server.answer) for _ in range(9)]
    until(lambda: server.scrape().get(("running_requests", "")) == 9)  # the signal comes while they run
    pids = server.workers()
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    server.let_them_answer()
    assert {request.result(LONGEST) for request in requests} <= pids
    until(lambda: bool(server.scrape()) and not pids & server.workers())
    until(lambda: server.scrape().get(("capacity_bytes", "")) == WORKERS * 10 * GIB)
    after = server.scrape()
    assert (after["leases_lost_total", ""], after["leases_ended_total", "ok"]) == (0, 9)
