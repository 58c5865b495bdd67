"""The README's snippets run as they stand, each pasted into an empty file."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpu_admission.cli import COMMANDS
from gpu_admission.planning.appdoors import look_into
from gpu_admission.shared.folder import FolderLog
from gpu_admission.shared.ledger import SharedLedger
from gpu_admission.shared.operations import Terms

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
CONFTEST = "import pytest\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n"
PROGRAMS = [snippet for snippet in SNIPPETS if "def test_" not in snippet]
TESTS = [snippet for snippet in SNIPPETS if "def test_" in snippet]


@pytest.mark.parametrize("program", PROGRAMS, ids=[f"snippet {n}" for n in range(len(PROGRAMS))])
def test_each_snippet_runs_as_it_stands(program: str, tmp_path: Path) -> None:
    done = run(program, tmp_path)
    assert done.returncode == 0, done.stderr


def run(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A shared budget in ``/dev/shm`` is one in ``folder`` instead."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program.replace("/dev/shm", str(folder))],
        env={
            **os.environ,
            "GPU_STATUS_TOKEN": "0123456789abcdef",
            "PYTHONPATH": str(Path(__file__).parents[1]),
        },
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_plain_script_works_on_the_budget_of_a_service_and_leaves_it_as_it_was(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (snippet,) = [snippet for snippet in SNIPPETS if "    with admission.lease(" in snippet]
    service = SharedLedger(FolderLog(tmp_path / "gpu0"), Terms((8 << 30,), max_waiting=7))
    service.start()
    caplog.clear()
    assert run(snippet, tmp_path).stdout == "training\n"
    service.pulse()
    service.stop()
    assert service.ledger.peak == 6 << 30
    assert (service.ledger.capacity, service.ledger.lanes[0].max_waiting) == (8 << 30, 7)
    assert not caplog.messages, "nothing is told of a program that has left"


def test_work_that_keeps_its_requests_bytes_gives_them_back_at_its_end() -> None:
    (snippet,) = [snippet for snippet in SNIPPETS if "lease.keep()" in snippet]
    names: dict[str, Any] = {}
    exec(snippet, names)

    async def render() -> list[int]:
        app = names["app"]
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:
            assert (await http.post("/render")).status_code == 202
        (admission,) = look_into(app, {}).admissions
        held = [admission.in_use]
        await asyncio.gather(*names["running"])
        await asyncio.sleep(0)
        return [*held, admission.in_use]

    assert asyncio.run(render()) == [2 * 2**30, 0]


def test_the_recipes_for_tests_of_ones_own_service_pass(tmp_path: Path) -> None:
    assert TESTS
    for number, snippet in enumerate(TESTS):
        (tmp_path / f"test_recipe_{number}.py").write_text(snippet)
    (tmp_path / "conftest.py").write_text(
        "import pytest\npytest.fixture(lambda: 'asyncio', name='anyio_backend')\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "test_", tmp_path],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout


def test_the_extras_are_those_that_there_are() -> None:
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = README.partition("| extra | for |")[2].partition("\n\n")[0]
    for_users = set(project["optional-dependencies"]) - {"test", "bench", "docs"}
    assert set(re.findall(r"^\| `(\w+)`", listed, flags=re.MULTILINE)) == for_users


def test_the_newest_version_of_the_changelog_is_that_of_the_package() -> None:
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    versions = re.findall(
        r"^## (.+)$", (root / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert versions[0] == "Unreleased"
    assert re.fullmatch(rf"{re.escape(project['version'])} - \d{{4}}-\d\d-\d\d", versions[1])


def test_every_command_that_it_names_is_one() -> None:
    named = set(re.findall(r"(?:`|^)gpu-admission ([a-z]+)", README, flags=re.MULTILINE))
    assert named == set(COMMANDS)


def test_every_file_and_command_that_it_names_is_there() -> None:
    root = Path(__file__).parents[1]
    named = re.findall(r"`(examples/[\w./-]*)`", README)
    assert named
    assert [name for name in named if not (root / name).exists()] == []
