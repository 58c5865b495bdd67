"""``examples/ray_serve.py`` on a local Ray: two replicas, one budget."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from gpu_admission import cli
from tests.waiting import free_port, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed"),
]
ROOT = Path(__file__).parents[1]
FITS, SECONDS, REQUESTS = 4, 0.2, 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    port = free_port()
    own = {"GPU_SHARE": "0", "SHARED_FOLDER": str(folder), "PYTHONPATH": str(ROOT)}
    quiet = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    patient = {
        f"RAY_SERVE_PROXY_{check}_CHECK_TIMEOUT_S": "50"  # seconds: below what Ray gives the whole proxy
        for check in ("READY", "HEALTH")
    }
    command = [sys.executable, "-m", "tests.rayserver", str(port)]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **own, **quiet, **patient},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert any("serving" in line for line in process.stdout), "Ray did not start"
        yield f"http://127.0.0.1:{port}"
        process.communicate("", timeout=300)
    assert process.returncode == 0


def test_replicas_on_one_gpu_share_one_budget(
    url: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask(_: int) -> dict[str, int]:
        answer = httpx.post(f"{url}/generate", json={"prompt": "hello", "max_tokens": 64}, timeout=300)
        assert answer.status_code == 200, answer.text
        served: dict[str, int] = answer.json()
        return served

    with ThreadPoolExecutor(REQUESTS) as clients:
        list(clients.map(ask, range(REQUESTS)))  # both replicas join
        began = time.monotonic()
        served = list(clients.map(ask, range(REQUESTS)))
        took = time.monotonic() - began
    assert len({each["replica"] for each in served}) == 2
    assert {each["held"] for each in served} == {2 * 2**30}
    assert took >= REQUESTS / FITS * SECONDS, "more ran at once than fit"

    def shown() -> str:
        assert cli.main(["budget", "show", str(folder / "gpu0")]) == 0
        return capsys.readouterr().out

    # An answer comes before its lease's end.
    until(lambda: "of 8.00 GiB in use by 0, 0 waiting" in shown())
    assert len(re.findall(r"\balive\b", shown())) == 2


def test_what_can_never_fit_is_refused_by_each_replica(url: str) -> None:
    answers = [
        httpx.post(f"{url}/generate", json={"prompt": "hello", "max_tokens": 8192}, timeout=300)
        for _ in range(4)
    ]
    assert {answer.status_code for answer in answers} == {413}
    assert {answer.json()["reason"] for answer in answers} == {"too_large"}
