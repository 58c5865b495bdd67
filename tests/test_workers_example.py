"""``examples/workers`` with real uvicorn workers: one budget, on a folder and over Redis."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from gpu_admission import cli
from tests.shared.redisserver import Server, needs_server
from tests.waiting import LONGEST, free_port, until

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
FITS = 4


@pytest.fixture(params=["folder", pytest.param("redis", marks=needs_server)])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "folder":
        yield str(tmp_path / "gpu0")
        return
    server = Server(tmp_path / "redis")
    yield server.address
    server.stop()


@pytest.fixture
def address(shared: str) -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "examples.workers.app:app", f"--port={port}", "--workers=4"]
    process = subprocess.Popen(
        [*command, "--log-level=warning"], env=os.environ | {"SHARED": shared}, cwd=ROOT
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(LONGEST)


def until_all_are_in(address: str) -> None:
    def are_in() -> bool:
        try:
            state = httpx.get(f"{address}/gpu/", headers={"Accept": "application/json"}, timeout=60).json()
        except httpx.TransportError:
            return False
        return len(state["members"]) == 4

    until(are_in)


def test_four_workers_let_in_what_fits_and_no_more(
    shared: str, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    until_all_are_in(address)

    def ask(_: int) -> dict[str, float]:
        answer = httpx.post(f"{address}/generate", json={"seconds": 0.5}, timeout=LONGEST)
        assert answer.status_code == 200, answer.text
        served: dict[str, float] = answer.json()
        return served

    with ThreadPoolExecutor(16) as clients:
        served = list(clients.map(ask, range(40)))
    assert len({each["worker"] for each in served}) > 1
    at_once = max(sum(a["began"] <= b["began"] < a["ended"] for a in served) for b in served)
    assert at_once == FITS

    def shown() -> str:
        assert cli.main(["budget", "show", shared]) == 0
        return capsys.readouterr().out

    # An answer comes before its lease's end.
    until(lambda: "0 B of 8.00 GiB in use by 0, 0 waiting" in shown())
    assert len(re.findall(r"\balive\b", shown())) == 4
