"""What this process has freed and its allocator keeps: given back, so that the next use shows as a rise.

Owns the two calls into glibc. Where the C library has none of them (musl, macOS), nothing is done.
"""

from __future__ import annotations

import ctypes
import gc
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of ``mallopt`` (malloc.h)."""
_KEPT = 128 * 1024
"""glibc's own first threshold; it raises it up to 32 MiB as larger blocks are freed, unless it was set."""


def keep_little() -> None:
    """From now on, larger blocks go back to the system when they are freed, in all threads."""
    mallopt = _of_libc("mallopt")
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _KEPT)
        mallopt(_TRIM_THRESHOLD, _KEPT)


def give_back() -> None:
    """Collect what nothing refers to, and give free memory back to the system."""
    gc.collect()
    trim = _of_libc("malloc_trim")
    if trim is not None:
        trim(0)


def _of_libc(name: str) -> Any:
    return getattr(ctypes.CDLL(None), name, None)
