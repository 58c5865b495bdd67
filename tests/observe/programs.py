"""Programs of the system that some tests drive: found, or the test is skipped; where ``CI=true`` it fails."""

from __future__ import annotations

import os
import shutil

import pytest


def program(*names: str) -> str:
    """The path of the first of ``names`` that is installed."""
    for name in names:
        path = shutil.which(name)
        if path is not None:
            return path
    missing = f"{names[0]} is not installed"
    if os.environ.get("CI") == "true":
        pytest.fail(f"{missing}, and CI must not skip this test")
    pytest.skip(missing)
