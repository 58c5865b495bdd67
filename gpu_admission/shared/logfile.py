"""The log's files in a folder: one write for each entry, in an order that the kernel keeps, and no lock.

A file that has become long is sealed: a mark at its end, after which nothing in it counts. All who
read up to the mark know the same, so any of them may write that down as the beginning of the next
file; the first one to do so wins. Nobody waits for anybody, and one that stalls stops nobody. Owns
the files and nothing else; what entries mean is the replica's business.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from gpu_admission.shared.frames import HEAD_SIZE, Frames, Head, frame, seal_frame, snapshot_frame
from gpu_admission.shared.protocol import Entry, LogAway

_LITTLE = 2048
_MUCH = 1 << 20
_FULL = "No space left on device"
_boot_time = time.CLOCK_BOOTTIME
_clock = time.clock_gettime_ns
_NAMESPACE = "/proc/self/timens_offsets"


class LogFile:
    """One process's open log file, and how far it has read. For one thread at a time.

    ``boot`` tells the starts of the host apart: their clocks have nothing to do with each other.
    """

    def __init__(self, folder: Path, boot: str) -> None:
        self._folder = folder
        self._prefix = f"log-{boot[:8]}-"
        self.size = 0
        """Bytes in the file when it was last looked at."""
        self.head = Head(b"", 0, 0)
        self._fd = -1
        self._offset = self._start = HEAD_SIZE
        self._frames = Frames()
        self._ahead = _ahead_of_host()

    def now(self) -> int:
        """Nanoseconds of the host's clock, whatever namespace of time this process is in."""
        return _clock(_boot_time) - self._ahead

    # opening

    def open(self) -> bytes | None:
        """Begin to read the newest file. Returns the snapshot that it begins with.

        Raises ``FileNotFoundError`` where there is none.
        """
        while True:
            numbers = self._numbers()
            if not numbers:
                raise FileNotFoundError(self._path(0))
            with contextlib.suppress(FileNotFoundError):  # another came after it meanwhile
                return self._open(numbers[-1])

    def open_next(self) -> bool:
        """Go on in the file that continues this one; whether there is one yet.

        Raises ``FileNotFoundError`` where a later one has taken its place already.
        """
        before, number = (self.head.lineage, self.place), self.head.number + 1
        try:
            self._open(number)
        except FileNotFoundError:
            if self._newest() > number:
                raise
            return False
        # Asked last: a process that lagged behind may have continued a file that was long removed.
        if self._newest() > number or (self.head.lineage, self.place) != before:
            raise FileNotFoundError(self._path(number))
        return True

    @property
    def is_there(self) -> bool:
        """Whether a log was begun since the host's last start."""
        return bool(self._numbers())

    def _newest(self) -> int:
        return max(self._numbers(), default=-1)

    def remove_other_boots(self) -> None:
        """Logs from before the host's last start: nobody who wrote them lives, and their clock differs."""
        for path in self._folder.glob("log-*"):
            if not path.name.startswith(self._prefix):
                path.unlink(missing_ok=True)

    def _numbers(self) -> list[int]:
        """Numbers of the files that are there, the oldest first."""
        names = (path.name.removeprefix(self._prefix) for path in self._folder.glob(f"{self._prefix}*"))
        return sorted(int(name) for name in names if name.isdecimal())

    def _path(self, number: int) -> Path:
        return self._folder / f"{self._prefix}{number}"

    def _open(self, number: int) -> bytes | None:
        fd = os.open(self._path(number), os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        size, frames = os.fstat(fd).st_size, Frames()
        head = Head.unpack(os.pread(fd, HEAD_SIZE, 0))
        snapshot, taken = frames.read_snapshot(os.pread(fd, max(0, size - HEAD_SIZE), HEAD_SIZE))
        if head is None or (head.number and snapshot is None):  # what came before it is not known any more
            os.close(fd)
            self._set_aside(number)
            raise FileNotFoundError(self._path(number))
        self.close()
        self._fd, self.head, self._frames, self.size = fd, head, frames, size
        self._offset = self._start = HEAD_SIZE + taken
        return snapshot

    def _set_aside(self, number: int) -> None:
        """Move away what is at the log's place and is no log."""
        with contextlib.suppress(FileNotFoundError):
            os.rename(self._path(number), self._folder / "log.broken")

    @property
    def grown(self) -> int:
        """Bytes of entries in the file that is open, beyond those of the snapshot that it begins with.

        Otherwise a large snapshot would be written again and again.
        """
        return self.size - 2 * self._start

    @property
    def place(self) -> int:
        """How far this process has read, in the whole log."""
        return self.head.base + self._offset - self._start

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @property
    def is_gone(self) -> bool:
        """Whether the file that is open was removed, moved away, or cut short."""
        if self._fd < 0:
            return True
        said = os.fstat(self._fd)
        try:
            is_there = os.path.samestat(said, self._path(self.head.number).stat())
        except FileNotFoundError:
            return True
        return not is_there or said.st_size < self._offset

    def drop_if_short(self) -> None:
        """Remove the file that is open where it says less than was read in it: it was cut short."""
        path = self._path(self.head.number)
        fcntl.flock(self._fd, fcntl.LOCK_EX)  # else two would do so, the second one to the file after it
        try:
            said = os.fstat(self._fd)
            if said.st_size < self._offset and os.path.samestat(said, path.stat()):
                path.unlink()
        except FileNotFoundError:
            pass
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    @property
    def is_sealed(self) -> bool:
        """Whether all of it was read, and it goes on in the next file."""
        return self._frames.is_sealed

    # reading and writing

    def write(self, data: bytes) -> None:
        """Append one entry. Raises ``LogAway`` when the disk is full or broken."""
        self._write(frame(data, self.now()))

    def seal(self) -> None:
        """Let nothing more count in this file."""
        self._write(seal_frame(self.now()))

    def _write(self, whole: bytes) -> None:
        try:
            written = os.write(self._fd, whole)
        except OSError as error:
            raise LogAway(str(error.strerror)) from error
        if written != len(whole):
            raise LogAway(_FULL)

    def read(self) -> list[Entry]:
        """Entries that have come since the last time."""
        entries: list[Entry] = []
        data = os.pread(self._fd, _LITTLE, self._offset)  # asking for much costs much, even if little comes
        if data:
            if len(data) == _LITTLE:
                data = self._all_after(data)
            self.size = self._offset + len(data)
            self._offset += self._frames.read(data, entries)
        return entries

    def _all_after(self, data: bytes) -> bytes:
        parts = [data]
        offset = self._offset + len(data)
        while part := os.pread(self._fd, _MUCH, offset):
            parts.append(part)
            offset += len(part)
        return b"".join(parts)

    # making

    def create(self, first: bytes) -> None:
        """Make a log that begins with the entry ``first``, unless there is one by now."""
        self._make(0, Head(secrets.token_bytes(16), 0, 0).pack() + frame(first, self.now()))

    def create_next(self, snapshot: bytes) -> None:
        """Make the file that continues this one with ``snapshot``, unless another process has.

        The earlier file can go: whoever still reads it has it open.
        """
        head = Head(self.head.lineage, self.head.number + 1, self.place)
        self._make(head.number, head.pack() + snapshot_frame(snapshot, self._frames.latest))
        for number in self._numbers():
            if number < head.number:
                self._path(number).unlink(missing_ok=True)

    def _make(self, number: int, data: bytes) -> None:
        with self._aside(data) as new, contextlib.suppress(FileExistsError):
            os.link(new, self._path(number))

    @contextlib.contextmanager
    def _aside(self, data: bytes) -> Iterator[Path]:
        """A whole file under a name of its own, for as long as the block."""
        path = self._folder / f"new-{secrets.token_hex(4)}"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            if os.write(fd, data) != len(data):
                raise LogAway(_FULL)
            yield path
        finally:
            os.close(fd)
            path.unlink(missing_ok=True)


def _ahead_of_host() -> int:
    """Nanoseconds by which a container's clock is ahead of the one that all processes of the host have."""
    try:
        lines = Path(_NAMESPACE).read_text().splitlines()
    except OSError:
        return 0
    for name, seconds, nanoseconds in map(str.split, lines):
        if name == "boottime":
            return int(seconds) * 10**9 + int(nanoseconds)
    return 0
