"""What a call really allocates on a CPU, as torch's profiler sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpu_admission.estimators.traced.measured import peak_of


def real_peak(call: Callable[[], Any]) -> int:
    """The most bytes that ``call`` held at once, beyond what there was before it."""
    return peak_of(call, "cpu")
