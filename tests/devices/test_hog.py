"""Another process takes memory while requests run: real processes, real memory, a real limit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.devices.cgroup import small_group


@pytest.fixture
def group() -> Iterator[Path]:
    with small_group() as folder:
        yield folder


def told_by(module: str, group: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", module, str(group)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, f"killed for memory? {done.stderr}"
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.slow
def test_beside_a_hog_requests_wait_and_none_fails_and_all_run_again_when_it_has_gone(group: Path) -> None:
    told = told_by("tests.devices.hog_scenario", group)
    assert told["hog"] == 0, "the hog kept its memory too"
    assert 2 <= told["with_hog"] < told["alone"]
    assert told["waiting"] == 1
    assert "other use of the device leaves" in told["reason"]
    assert told["looks"] <= 3, "at two looks a second that is within two seconds"
    assert told["after"] >= told["alone"] - 1


@pytest.mark.slow
def test_behind_the_middleware_a_hog_makes_requests_wait_and_fails_none(group: Path) -> None:
    """The same through ``GPUAdmission``, with clients that never rest and its own readings thread."""
    told = told_by("tests.devices.hog_service", group)
    assert told["hog"] == 0, "the hog kept its memory too"
    assert 2 <= told["with_hog"] < told["alone"]
    assert told["waiting"] > 0
    assert "other use of the device leaves" in told["reason"]
    assert told["failed"] == []
    assert told["served"] > told["alone"]
    assert told["looks"] <= 3, "at two looks a second that is within two seconds"
    assert told["after"] >= told["alone"]
