"""What a call really allocates: on a card by torch's allocator, on a CPU by torch's profiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


def peak_of(call: Callable[[], Any], device: str) -> int:
    """The most bytes that ``call`` held on ``device`` at once, beyond what was there before.

    It is called twice: what is made only once is not part of a request.
    """
    with torch.no_grad():
        call()
        return _on_cuda(call) if device.startswith("cuda") else _on_cpu(call)


def _on_cuda(call: Callable[[], Any]) -> int:
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _on_cpu(call: Callable[[], Any]) -> int:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        call()
    held = peak = 0
    results: Any = seen.profiler
    for event in results.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak
