"""Host memory as a device: the tightest of this process's own limit, its cgroups and the system.

Owns the reading of ``/proc`` and of the cgroup file systems, version 2 and then 1. Page
cache that the kernel can take back is not counted as used (as Kubernetes counts it), nor
is it counted as ours. Nothing about accelerators belongs here.
"""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from gpu_admission.types import DeviceReading

_TRIES = 5
_STEADY = 1000
"""Our memory counts as unchanged if it differs by less than this part of the total."""
UNLIMITED = 2**60
"""Limits from here on mean none; version 1 writes the largest page-aligned 63-bit number."""


class _Files(msgspec.Struct, frozen=True):
    """Names of one cgroup version's files."""

    limit: str
    usage: str
    cache: str


_V2 = _Files("memory.max", "memory.current", "inactive_file")
_V1 = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


class HostMemory:
    """The memory that this process may use: its cgroups' limits, then the system's.

    ``total`` is the tightest limit and ``free`` what is left under the tightest of all;
    ``ours`` is what this process alone holds (anonymous and shared memory, no page cache). Where
    it has a limit of its own on private memory (``ulimit -d``), that is its ``allowance``, and all that
    it has mapped counts, touched or not, as it does for that limit. Where there is no ``/proc``,
    ``psutil`` is used if it is installed.
    """

    def __init__(self, *, root: str | Path = "/", clock: Callable[[], float] = time.monotonic) -> None:
        self._root = Path(root)
        self._clock = clock

    @property
    def name(self) -> str:
        return "host memory"

    @property
    def key(self) -> str:
        return "host"

    def read(self) -> DeviceReading:
        """A new reading. Fields that can't be read are ``None``; never raises."""
        try:
            total, free, ours = self._together()
        except (OSError, ValueError, LookupError) as error:
            return self._by_psutil(f"/proc: {type(error).__name__}")
        free = max(0, min(free, total))
        return self._within_own_limit(self._reading(total, free, ours))

    def _together(self) -> tuple[int, int, int]:
        """Total, free and our bytes at one moment, so that what we take meanwhile is not blamed on others.

        If our own use keeps changing, the smaller figure is ours, so that rather too little is given out.
        """
        ours = self._resident()
        for _ in range(_TRIES):
            before = ours
            total, free = self._system()
            for limit, left in self._limits():
                total, free = min(total, limit), min(free, left)
            ours = self._resident()
            if abs(ours - before) <= total // _STEADY:
                break
        return total, free, min(before, ours)

    def _within_own_limit(self, reading: DeviceReading) -> DeviceReading:
        """``reading`` in the bytes that the limit counts: mapped memory is ours even before it is touched."""
        limit = self._data_limit()
        if limit is None or reading.free is None or reading.ours is None or reading.total is None:
            return reading
        mapped = _kib_table(self._text("proc/self/status")).get("VmData", 0)
        free = max(0, reading.free - max(0, mapped - reading.ours))
        changed = self._reading(reading.total, free, max(mapped, reading.ours))
        return msgspec.structs.replace(changed, allowance=limit)

    def _data_limit(self) -> int | None:
        """``RLIMIT_DATA``, if there is one."""
        try:
            found = re.search(r"^Max data size\s+(\d+)\s", self._text("proc/self/limits"), re.MULTILINE)
        except OSError:
            return None
        return int(found[1]) if found else None

    def _reading(self, total: int, free: int, ours: int) -> DeviceReading:
        """All that a process holds is in use: no allocator's cache is known here."""
        return DeviceReading(
            total=total,
            used=total - free,
            free=free,
            ours=ours,
            reserved=ours,
            allocated=ours,
            taken_at=self._clock(),
        )

    def _system(self) -> tuple[int, int]:
        """Total and available bytes of the machine."""
        facts = _kib_table(self._text("proc/meminfo"))
        return facts["MemTotal"], facts["MemAvailable"]

    def _resident(self) -> int:
        facts = _kib_table(self._text("proc/self/status"))
        return facts["RssAnon"] + facts["RssShmem"]

    def _limits(self) -> Iterator[tuple[int, int]]:
        """(limit, bytes left under it) of every cgroup from ours up to the mount point."""
        for files, folder, top in self._cgroups():
            for level in (level for level in (folder, *folder.parents) if level.is_relative_to(top)):
                limit = _number(level / files.limit)
                if limit is not None and limit < UNLIMITED:
                    yield limit, limit - _working_set(level, files)

    def _cgroups(self) -> Iterator[tuple[_Files, Path, Path]]:
        """Our folder, and the mount point above it, in each hierarchy that controls memory."""
        ours = dict(_memory_paths(self._text("proc/self/cgroup")))
        for files, root, mount_point in _memory_mounts(self._text("proc/self/mountinfo")):
            if files not in ours:
                continue
            top = self._root / mount_point.lstrip("/")
            inside = ours[files].removeprefix(root.rstrip("/")).lstrip("/")
            folder = top / inside
            yield files, folder if ".." not in inside and folder.is_dir() else top, top

    def _text(self, path: str) -> str:
        return (self._root / path).read_text(encoding="utf-8", errors="replace")

    def _by_psutil(self, problem: str) -> DeviceReading:
        try:
            psutil: Any = importlib.import_module("psutil")
        except ImportError:
            return DeviceReading(taken_at=self._clock(), error=f"{problem}; psutil is not installed")
        memory = psutil.virtual_memory()
        return self._reading(memory.total, memory.available, psutil.Process().memory_info().rss)

    def __repr__(self) -> str:
        return "HostMemory()"


def _kib_table(text: str) -> dict[str, int]:
    """``Name:   123 kB`` lines as bytes."""
    return {name: int(kib) * 1024 for name, kib in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}


def _memory_paths(text: str) -> Iterator[tuple[_Files, str]]:
    """Our path in each hierarchy, from ``/proc/self/cgroup``."""
    for line in text.splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            yield _V2, path
        elif "memory" in controllers.split(","):
            yield _V1, path


def _memory_mounts(text: str) -> Iterator[tuple[_Files, str, str]]:
    """(version, root, mount point) of cgroup mounts, from ``/proc/self/mountinfo``."""
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if kind[0] == "cgroup2":
            yield _V2, fields[3], fields[4]
        elif kind[0] == "cgroup" and "memory" in kind[2].split(","):
            yield _V1, fields[3], fields[4]


def _number(path: Path) -> int | None:
    """The number in a file; ``None`` for ``max`` and for a file that is not there."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _working_set(folder: Path, files: _Files) -> int:
    """Usage without the page cache that the kernel takes back first."""
    usage = _number(folder / files.usage) or 0
    stat = (folder / "memory.stat").read_text(encoding="ascii")
    found = re.search(rf"^{files.cache} (\d+)$", stat, re.MULTILINE)
    return max(0, usage - (int(found[1]) if found else 0))
