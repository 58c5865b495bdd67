"""What is optional is loaded by whoever asks for it, and by nobody else."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "library", ["prometheus_client", "opentelemetry", "torch", "pynvml", "gpu_admission.planning"]
)
def test_importing_what_there_is_to_see_loads_nothing_optional(library: str) -> None:
    script = f"import sys, gpu_admission.observe; sys.exit({library!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_the_package_itself_loads_nothing_of_it() -> None:
    script = "import sys, gpu_admission; sys.exit('gpu_admission.observe' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
