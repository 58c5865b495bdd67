"""What a call really allocates on a CPU, as torch's profiler sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


def real_peak(call: Callable[[], Any]) -> int:
    """The most bytes that ``call`` held at once, beyond what there was before it."""
    with torch.no_grad():
        call()  # what is made once is no part of a request
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            call()
    held = peak = 0
    for event in seen.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak
