"""Another process takes memory while requests run: real processes, real memory, a real limit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_admission.devices.host import HostMemory

LIMIT = 768 * 2**20


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group of our own that may use ``LIMIT`` bytes; skips where we may not make one."""
    parents = [(files, folder) for files, folder, _ in HostMemory()._cgroups()]
    for files, parent in parents:
        folder = parent / f"gpu_admission_test_{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            (folder / files.limit).write_text(str(LIMIT))
            yield folder
            return
        except OSError:
            continue
        finally:
            folder.rmdir()
    pytest.skip("no right to make a memory control group here")


@pytest.mark.slow
def test_beside_a_hog_requests_wait_and_none_fails_and_all_run_again_when_it_has_gone(group: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.devices.hog_scenario", str(group)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, f"killed for memory? {done.stderr}"
    told = json.loads(done.stdout)
    assert told["hog"] == 0, "the hog kept its memory too"
    assert 2 <= told["with_hog"] < told["alone"]
    assert told["waiting"] == 1
    assert "other use of the device leaves" in told["reason"]
    assert told["looks"] <= 3, "at two looks a second that is within two seconds"
    assert told["after"] >= told["alone"] - 1
