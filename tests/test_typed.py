"""What users write passes pyright as it comes; ``make types`` holds it against ``mypy --strict``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("paths", "mode"), [(["tests/userprogram.py"], "strict"), (["examples"], "standard")]
)
def test_what_users_write_passes_pyright(paths: list[str], mode: str, tmp_path: Path) -> None:
    config = tmp_path / "pyrightconfig.json"
    config.write_text(
        json.dumps(
            {
                "include": [str(ROOT / path) for path in paths],
                "extraPaths": [str(ROOT)],
                "typeCheckingMode": mode,
                "pythonVersion": "3.11",
            }
        )
    )
    command = [sys.executable, "-m", "basedpyright", "--project", str(config), "--pythonpath", sys.executable]
    done = subprocess.run([*command, "--level", "error"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
