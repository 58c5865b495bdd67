"""What a request asks: bodies of well-known APIs, read into a ``Workload``.

One dialect a file. Each has ``read(info)``, which raises ``UnreadableBody`` and nothing
else, and never executes, fetches or opens anything. A dialect is chosen by the end of the
request's path, by name, or given as an object. What a workload takes is ``estimators``'.
"""

from __future__ import annotations

from functools import cache

from gpu_admission.types import Dialect
from gpu_admission.workloads.openai import OpenAI

__all__ = ["OpenAI", "dialect_for"]


@cache
def _openai() -> Dialect:
    return OpenAI()


def dialect_for(path: str) -> Dialect:
    """The dialect of a request to ``path``."""
    return _openai()
