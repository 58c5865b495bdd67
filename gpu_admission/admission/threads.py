"""Work in a thread that keeps its lease until it has really ended.

A cancelled task stops waiting for its thread at once, and the thread works on: its bytes
are given back by the thread, never by the task.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from gpu_admission.admission.lease import Lease

T = TypeVar("T")


async def run_in_thread(
    lease: Lease | None, call: Callable[[], T], limiter: anyio.CapacityLimiter | None = None
) -> T:
    """``call()`` in a worker thread, with the bytes of ``lease`` held until it returns."""
    if lease is None or lease.ended:
        return await anyio.to_thread.run_sync(call, limiter=limiter)
    handle = lease.keep()
    claim = threading.Lock()

    def work() -> Any:
        if not claim.acquire(blocking=False):
            return None
        with handle:
            return call()

    try:
        return await anyio.to_thread.run_sync(work, limiter=limiter)
    finally:
        # Cancelled before a thread took it up: whoever claims it first decides, so that it
        # either never runs or holds its bytes while it does.
        if claim.acquire(blocking=False):
            handle.close()
