"""Two budgets for one device that do not know of each other are warned of, in one process and in two."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_admission import Admission
from gpu_admission.runtime.claims import Claims
from gpu_admission.testing import FakeDevice

WORKER = """
import asyncio, logging, sys
from gpu_admission import Admission
from gpu_admission.devices import FixedDevice
logging.basicConfig(stream=sys.stdout)
settings = {"capacity": 100, "estimator": 1, "name": sys.argv[1]}
admission = Admission(**settings, **({"shared": sys.argv[2]} if len(sys.argv) > 2 else {}))
asyncio.run(admission.startup.begin())
print("begun", flush=True)
sys.stdin.read()
"""


class Worker:
    """A process with a budget, until ``stop``; ``said`` is what it logged when it began."""

    def __init__(self, temporary: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, *arguments],
            env=os.environ | {"TMPDIR": str(temporary)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.said = ""
        while (line := self.process.stdout.readline()) != "begun\n":
            assert line, self.said
            self.said += line

    def stop(self) -> None:
        self.process.communicate("")


def told_by_the_second(tmp_path: Path, *arguments: str) -> str:
    first, second = (Worker(tmp_path, *arguments) for _ in range(2))
    first.stop()
    second.stop()
    assert "shared=" not in first.said
    return second.said


def test_a_second_worker_that_does_not_share_is_warned_of(tmp_path: Path) -> None:
    said = told_by_the_second(tmp_path, "chat")
    assert said.count("WARNING") == 1
    assert "given out by another process too" in said
    assert "budget 'chat'" in said
    assert 'shared="/dev/shm/..."' in said


def test_workers_that_share_are_not(tmp_path: Path) -> None:
    assert "another process" not in told_by_the_second(tmp_path, "chat", str(tmp_path / "gpu0"))


def test_two_budgets_of_one_process_for_one_device_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    card = FakeDevice(total=100)
    kept = [Admission(devices=[card], capacity=100, estimator=1) for _ in range(2)]
    assert len(kept) == 2
    (warning,) = [record.message for record in caplog.records if "two budgets" in record.message]
    assert 'shared="/dev/shm/..."' in warning


def test_a_claim_lasts_until_its_process_gives_it_back() -> None:
    mine, others = Claims(), Claims()
    assert [mine.claim("card"), mine.claim("card"), others.claim("card")] == [True, True, False]
    mine.drop()
    assert others.claim("card")
    others.drop()


def test_a_place_that_cannot_be_used_claims_nothing_and_stops_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse() -> Path:
        raise PermissionError("not yours")

    monkeypatch.setattr("gpu_admission.runtime.claims._folder", refuse)
    assert Claims().claim("card")
