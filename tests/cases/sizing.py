"""What tests of body contents share: an estimator by tokens, uploads, and the memory that Python holds."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

from gpu_admission import RequestInfo
from gpu_admission.types import Message

MIB = 2**20


def asked_tokens(info: RequestInfo) -> int:
    """Charges what an OpenAI request asks for: a byte a token."""
    workload = info.workload
    return workload.prompt_tokens + workload.sequences * workload.new_tokens


class Traced:
    """Bytes that Python held inside a block, more than before: the most at once, and at its end."""

    peak = 0
    kept = 0


@contextmanager
def traced() -> Iterator[Traced]:
    traced = Traced()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        yield traced
        traced.kept, traced.peak = (size - before for size in tracemalloc.get_traced_memory())
    finally:
        tracemalloc.stop()


class Upload:
    """A client that sends ``count`` chunks of ``size`` bytes, made when they are received."""

    def __init__(self, size: int, count: int) -> None:
        self._size = size
        self._left = count
        self.received = 0

    async def receive(self) -> Message:
        self.received += 1
        self._left -= 1
        return {"type": "http.request", "body": b"x" * self._size, "more_body": self._left > 0}
