"""The log's file in a folder: one write for each entry, in an order that the kernel keeps.

Every writer holds the file's lock *shared* for the moment of its write, so that none waits for
another, and one that is stopped there stops nobody. Only who replaces the file by a shorter one
(a snapshot) holds it alone. Owns the file and nothing else; what entries mean is the
replica's business.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from gpu_admission.shared.frames import HEAD_SIZE, Frames, Head, frame
from gpu_admission.shared.protocol import Entry, LogAway

_NAME = "log"
_PATIENCE = 1.0
_LITTLE = 2048
_MUCH = 1 << 20
_SHARED = fcntl.LOCK_SH | fcntl.LOCK_NB
_boot_time = time.CLOCK_BOOTTIME


class LogFile:
    """One process's open log file, and how far it has read. For one thread at a time."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / _NAME
        self.size = 0
        """Bytes in the file when it was last looked at."""
        self.head = Head(b"", "", 0)
        self._fd = -1
        self._offset = self._start = HEAD_SIZE
        self._frames = Frames()

    # opening

    def open(self) -> bytes | None:
        """Begin to read the file that is there now. Returns the snapshot that it begins with.

        Raises ``FileNotFoundError`` where there is none, ``ValueError`` for what is no log.
        """
        fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        head = Head.unpack(os.pread(fd, HEAD_SIZE, 0))
        if head is None:
            os.close(fd)
            raise ValueError(f"{self.path} is no log of a shared budget")
        self.close()
        self._fd, self.head, self._frames = fd, head, Frames()
        self.size = os.fstat(fd).st_size
        snapshot, taken = self._frames.read_snapshot(os.pread(fd, max(0, self.size - HEAD_SIZE), HEAD_SIZE))
        self._offset = self._start = HEAD_SIZE + taken
        return snapshot

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
        """Whether another file has taken the place of the one that is open."""
        return self._fd < 0 or os.fstat(self._fd).st_nlink == 0

    # reading and writing

    def begin_writing(self) -> bool:
        """Let nobody replace the file until ``end_writing``; ``False`` where another has taken its place.

        Raises ``LogAway`` where someone has been at it for long.
        """
        try:
            fcntl.flock(self._fd, _SHARED)
        except BlockingIOError:
            self._lock(fcntl.LOCK_SH)
        return os.fstat(self._fd).st_nlink > 0

    def end_writing(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _lock(self, kind: int) -> None:
        end = 0.0
        while True:
            try:
                return fcntl.flock(self._fd, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                now = time.monotonic()
                end = end or now + _PATIENCE
                if now > end:
                    raise LogAway(
                        f"the shared budget {self.path.parent}: another process has stopped while it "
                        "replaced the log; continue it or kill it"
                    ) from None
                time.sleep(0.0002)

    def write(self, data: bytes) -> None:
        """Append one entry. Raises ``LogAway`` when the disk is full or broken."""
        whole = frame(data, time.clock_gettime_ns(_boot_time))
        try:
            written = os.write(self._fd, whole)
        except OSError as error:
            raise LogAway(f"the shared budget {self.path.parent}: {error.strerror}") from error
        if written != len(whole):
            raise LogAway(f"the shared budget {self.path.parent}: no space left on the device")

    def read(self) -> list[Entry]:
        """Entries that have come since the last time."""
        self.size = os.fstat(self._fd).st_size
        entries: list[Entry] = []
        if self.size > self._offset:
            self._offset += self._frames.read(self._rest(), entries)
        return entries

    def read_after_write(self) -> list[Entry]:
        """The same, where there is something for certain."""
        entries: list[Entry] = []
        data = self._rest()
        self.size = self._offset + len(data)
        self._offset += self._frames.read(data, entries)
        return entries

    def _rest(self) -> bytes:
        data = os.pread(self._fd, _LITTLE, self._offset)  # to ask for much costs much, if little comes
        if len(data) < _LITTLE:
            return data
        parts = [data]
        offset = self._offset + len(data)
        while part := os.pread(self._fd, _MUCH, offset):
            parts.append(part)
            offset += len(part)
        return b"".join(parts)

    # making and replacing

    def create(self, boot: str, first: bytes) -> None:
        """Make a log that begins with the entry ``first``, unless there is one by now."""
        head = Head(secrets.token_bytes(16), boot, 0)
        new = self._write_aside(head, frame(first, time.clock_gettime_ns(_boot_time)))
        try:
            os.link(new, self.path)
        except FileExistsError:
            pass
        finally:
            os.unlink(new)

    def begin_anew(self, boot: str, first: bytes, may: Callable[[], bool]) -> None:
        """Put a new log in the place of the one that is open, if one then still ``may``."""
        self._lock(fcntl.LOCK_EX)
        try:
            if may() and not self.is_gone:
                head = Head(secrets.token_bytes(16), boot, 0)
                new = self._write_aside(head, frame(first, time.clock_gettime_ns(_boot_time)))
                os.rename(new, self.path)
        finally:
            self.end_writing()

    def set_aside(self) -> None:
        """Move away what is at the log's place and is no log."""
        with contextlib.suppress(FileNotFoundError):
            os.rename(self.path, self.path.with_name(f"{_NAME}.broken"))

    @contextlib.contextmanager
    def replacing(self) -> Iterator[bool]:
        """Nobody writes meanwhile; ``False`` where someone is just at it."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        fd = self._fd
        try:
            yield True
        finally:
            if fd == self._fd:
                self.end_writing()

    def replace(self, snapshot: bytes) -> None:
        """Continue in a new file that begins with ``snapshot``, the state after all that was read."""
        head = Head(self.head.lineage, self.head.boot, self.place)
        new = self._write_aside(head, frame(snapshot, self._frames.latest, snapshot=True))
        os.rename(new, self.path)
        self.open()

    def _write_aside(self, head: Head, body: bytes) -> str:
        name = f"{self.path}.{secrets.token_hex(4)}"
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            data = head.pack() + body
            if os.write(fd, data) != len(data):
                raise LogAway(f"the shared budget {self.path.parent}: no space left on the device")
        except BaseException:
            os.unlink(name)
            raise
        finally:
            os.close(fd)
        return name
