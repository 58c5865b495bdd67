"""``examples/locustfile.py`` against the chat service: what it counts, and that the service comes to rest."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the chat service needs torch")

from examples.qwen_service import app as service
from tests.observe.serving import served

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]


@pytest.fixture
def counted(tmp_path: Path) -> Iterator[dict[str, tuple[int, int]]]:
    """Requests and failures by name, after a ramp of twelve clients on a budget for few."""
    app = service.build()
    app.state.admission.resize("16MiB")
    with served(app) as url:
        command = [
            sys.executable,
            "-m",
            "locust",
            "-f",
            str(ROOT / "examples" / "locustfile.py"),
            "--host",
            url,
        ]
        done = subprocess.run(
            [*command, "--headless", "--only-summary", "--csv", str(tmp_path / "load")],
            env={**os.environ, "STAGES": "3:4,12:12"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        with (tmp_path / "load_stats.csv").open() as file:
            rows = {row["Name"]: row for row in csv.DictReader(file)}
        yield {name: (int(row["Request Count"]), int(row["Failure Count"])) for name, row in rows.items()}
        turn = threading.Event()
        for _ in range(1000):
            if not app.state.admission.in_use and not app.state.admission.waiting:
                break
            turn.wait(0.02)
        rest = app.state.admission.snapshot()
        assert (rest.in_use, rest.running, rest.waiting, rest.buffered_bytes) == (0, 0, 0, 0)


def test_the_ramp_mixes_short_and_long_ones_with_those_that_hang_up(
    counted: dict[str, tuple[int, int]],
) -> None:
    assert counted["short: whole answer"][0] > counted["long: whole answer"][0] > 0
    assert counted["hangs up: accepted"][0] > 0
    assert "hangs up: whole answer" not in counted
    assert counted["short: first token"][0] >= counted["short: whole answer"][0]
    assert counted["long: refused 413"][0] > 0, "the longest never fit"
    assert counted["Aggregated"][1] == 0
