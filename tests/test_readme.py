"""The README's snippets run as they stand, each pasted into an empty file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
CONFTEST = "import pytest\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n"
PROGRAMS = [snippet for snippet in SNIPPETS if "def test_" not in snippet]
TESTS = [snippet for snippet in SNIPPETS if "def test_" in snippet]


@pytest.mark.parametrize("program", PROGRAMS, ids=[f"snippet {n}" for n in range(len(PROGRAMS))])
def test_each_snippet_runs_as_it_stands(program: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={
            **os.environ,
            "GPU_STATUS_TOKEN": "0123456789abcdef",
            "PYTHONPATH": str(Path(__file__).parents[1]),
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


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


def test_every_file_and_command_that_it_names_is_there() -> None:
    root = Path(__file__).parents[1]
    named = re.findall(r"`(examples/[\w./-]*)`", README)
    assert named
    assert [name for name in named if not (root / name).exists()] == []
