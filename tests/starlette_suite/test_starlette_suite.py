"""Starlette's own tests come out behind ``GPUAdmission`` exactly as they do without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import starlette

BASE = "tests/middleware/test_base.py::test_"
EXCEPTIONS: dict[str, set[str]] = {
    "constant": set(),
    # They call an app by hand with a ``receive`` that must not be called, or whose first message
    # is the client's disconnect: whoever reads a body first calls it, or sees it.
    "reading": {
        f"{BASE}{name}[{backend}]"
        for backend in ("asyncio", "trio")
        for name in (
            "background_task_runs_after_response_sent_with_middleware",
            "multiple_middlewares_stacked_client_disconnected",
        )
    },
}
pytestmark = [pytest.mark.starlette_suite, pytest.mark.slow]


@pytest.fixture(scope="session")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Starlette's sdist, of the installed version."""
    folder = tmp_path_factory.mktemp("starlette")
    sdist = f"starlette=={starlette.__version__}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
    subprocess.run([*command, "--dest", str(folder), sdist], check=True, timeout=300)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    return next(path for path in folder.iterdir() if path.is_dir())


def outcomes(suite: Path, way: str) -> dict[str, str]:
    target = suite / f"outcomes-{way or 'bare'}.json"
    # The installed Starlette is the one under test; of the sdist only its tests are used.
    environment = {
        **os.environ,
        "WRAP": way,
        "OUTCOMES": str(target),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "wrapping", "--tb=short", "tests"]
    run = subprocess.run(
        command, cwd=suite, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert target.exists(), run.stdout[-3000:] + run.stderr[-3000:]
    found: dict[str, str] = json.loads(target.read_text())
    assert len(found) > 500, run.stdout[-3000:]
    return found


@pytest.fixture(scope="session")
def bare(suite: Path) -> dict[str, str]:
    return outcomes(suite, "")


@pytest.mark.parametrize("way", ["constant", "reading"])
def test_every_test_of_starlette_comes_out_as_it_does_bare(
    suite: Path, bare: dict[str, str], way: str
) -> None:
    wrapped = outcomes(suite, way)
    different = {name for name in bare if wrapped.get(name) != bare[name]}
    assert different == EXCEPTIONS[way]
