"""``examples/locustfile.py`` against the chat service: what it counts, and that the service comes to rest."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the chat service needs torch")

from examples.qwen_service import app as service
from tests.observe.serving import served
from tests.waiting import until

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
UNTIL_SEEN = """
from examples import locustfile
from examples.locustfile import HangsUp, Long, Short

SEEN = {"long: whole answer": 1, "hangs up: accepted": 1, "long: refused 413": 1}

class UntilSeen(locustfile.Ramp):
    def tick(self):
        counts = {name: entry.num_requests for (name, _), entry in self.runner.stats.entries.items()}
        return None if all(counts.get(name, 0) >= least for name, least in SEEN.items()) else super().tick()
"""
"""The same load, over as soon as there is something of each kind: when that is depends on the machine."""


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, tuple[int, int]]]:
    """Requests and failures by name, after a ramp to twelve clients on a budget for few."""
    (tmp_path / "until_seen.py").write_text(UNTIL_SEEN)
    monkeypatch.setenv("GPU_ADMISSION_TIMEOUT", "600")
    app = service.build()
    app.state.admission.resize("16MiB")
    with served(app) as url:
        command = [
            sys.executable,
            "-m",
            "locust",
            "-f",
            str(tmp_path / "until_seen.py"),
            "--host",
            url,
        ]
        done = subprocess.run(
            [*command, "--headless", "--only-summary", "--csv", str(tmp_path / "load")],
            env={**os.environ, "STAGES": "3:4,3600:12", "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        with (tmp_path / "load_stats.csv").open() as file:
            rows = {row["Name"]: row for row in csv.DictReader(file)}
        yield {name: (int(row["Request Count"]), int(row["Failure Count"])) for name, row in rows.items()}
        until(lambda: not app.state.admission.in_use and not app.state.admission.waiting)
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
