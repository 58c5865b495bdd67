"""Large bodies are read in worker threads of their own, a few at a time.

Owns what counts as large, and how many are read at once: each takes several times its size in
host memory while it is read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import anyio.to_thread
from anyio.lowlevel import RunVar

from gpu_admission.request import RequestInfo

T = TypeVar("T")

AT_ONCE = 2
SMALL_BYTES = 16 * 1024
"""Up to here nothing is large, and nobody is asked."""
LARGE_BYTES = 256 * 1024
"""Above this a body is read in a thread, where its dialect names no size of its own."""

_readers: RunVar[anyio.CapacityLimiter] = RunVar("gpu_admission.readers")


def is_large(info: RequestInfo) -> bool:
    """Whether reading the body of ``info`` would hold up the event loop."""
    size = len(info.body)
    return size > SMALL_BYTES and size > getattr(info.dialect, "offload_bytes", LARGE_BYTES)


async def read_aside(read: Callable[..., T], *args: object) -> T:
    """``read(*args)`` in a worker thread, beside at most one other."""
    limiter = _readers.get(None)
    if limiter is None:
        limiter = anyio.CapacityLimiter(AT_ONCE)
        _readers.set(limiter)
    return await anyio.to_thread.run_sync(read, *args, limiter=limiter)
