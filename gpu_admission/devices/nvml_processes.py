"""How much of a card is ours: the driver's list of processes against our own process tree.

Owns process ids and their namespaces. In a container the driver lists the machine's ids or
none, so "not listed" means zero only where our ids are the machine's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""Inode that Linux gives to the machine's own process namespace."""
MOST_PIDS = 2**22
"""``PID_MAX_LIMIT`` of Linux."""


def our_bytes(processes: Iterable[Any], *, total: int | None = None, root: Path = Path("/")) -> int | None:
    """Bytes of this process and its children; ``None`` where the driver does not tell.

    A process listed with 0 bytes is one whose memory is not reported: every context takes some. A list
    that can't be true is ignored: driver and binding of different versions read it differently.
    """
    processes = list(processes)
    if any(_is_scrambled(process, total) for process in processes):
        return None
    mine: list[int | None] = [p.usedGpuMemory for p in processes if _is_ours(p.pid, root)]
    told = [size for size in mine if size]
    if len(told) < len(mine) or (not mine and not _sees_all_processes(root)):
        return None
    return sum(told)


def _is_scrambled(process: Any, total: int | None) -> bool:
    """Whether an entry has more bytes than the device, or an id that Linux gives to no process."""
    size = process.usedGpuMemory
    if size is not None and total is not None and size > total:
        return True
    return sys.platform == "linux" and not 0 < process.pid <= MOST_PIDS


def _is_ours(pid: int, root: Path) -> bool:
    """Whether ``pid`` is this process or comes from it."""
    for _ in range(16):
        if pid == os.getpid():
            return True
        pid = _parent(pid, root)
    return False


def _parent(pid: int, root: Path) -> int:
    """The parent's id; 0 when it is not told."""
    try:
        stat = (root / "proc" / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        return int(stat.rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def _sees_all_processes(root: Path) -> bool:
    if sys.platform != "linux":
        return True
    try:
        return (root / "proc/self/ns/pid").stat().st_ino == FIRST_PID_NAMESPACE
    except OSError:
        return False
