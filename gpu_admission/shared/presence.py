"""Shows others that this process lives, and lets them wake it.

A file that stays locked for as long as the process lives (the kernel gives the lock back, however
it dies), and a datagram socket. Both are named for the process, work across containers that mount
the folder, and are closed in forked children: those must not keep a dead parent alive.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import socket
from collections.abc import Collection, Iterator
from pathlib import Path

from gpu_admission.runtime.fork import in_child

_JOINED = b"joined"
_LONGEST_ADDRESS = 100
_SHORT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""What says that this process, or the host, has no room for another open file, and nothing of the file."""
OPEN_FOLDER = "/proc/self/fd/"


class Presence:
    """One process's lock file and socket in ``folder``."""

    def __init__(self, folder: Path, process: str) -> None:
        self._folder = folder
        self._process = process
        self._lock = self._directory = -1
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._dead: set[str] = set()
        try:
            self.show()
        except BaseException:
            self.abandon()
            raise
        in_child(self.abandon)

    def show(self) -> None:
        """Make what is missing of it: at the start, and after the folder was removed or cleaned."""
        before = self._directory
        self._directory = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        _close(before)
        if not self._has_lock():
            before, self._lock = self._lock, self._take_lock()
            _close(before)
        self._listen()

    def _listen(self) -> None:
        self._socket.close()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        path = self._socket_path(self._process)
        path.unlink(missing_ok=True)
        self._socket.bind(self._address(self._process))
        path.chmod(0o600)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)

    def _take_lock(self) -> int:
        """A file that is locked before it has its name: seen there without its lock, it would look dead."""
        aside, flags = self._folder / f"{self._process}.new", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        fd = os.open(aside, flags | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            os.rename(aside, self._lock_path(self._process))
        except BaseException:
            os.close(fd)
            aside.unlink(missing_ok=True)
            raise
        return fd

    @property
    def lifeline(self) -> int:
        """The locked file: whoever inherits it keeps this process alive in the eyes of others."""
        return self._lock

    @property
    def is_gone(self) -> bool:
        """Whether a file of it was removed: others can't see it any more, or can't wake it."""
        return not self._has_lock() or not self._socket_path(self._process).exists()

    def _has_lock(self) -> bool:
        """Whether the file that it has locked is the one that others see: its folder may have been moved."""
        try:
            return self._lock >= 0 and os.path.samestat(
                os.fstat(self._lock), os.lstat(self._lock_path(self._process))
            )
        except OSError:
            return False

    def join(self) -> None:
        """Let others see that this process uses the log that is there now."""
        os.pwrite(self._lock, _JOINED, 0)

    def has_joined(self, process: str) -> bool:
        try:
            return self._lock_path(process).read_bytes() == _JOINED
        except OSError:
            return False

    def _lock_path(self, process: str) -> Path:
        return self._folder / f"{process}.lock"

    def _socket_path(self, process: str) -> Path:
        return self._folder / f"{process}.wake"

    def _address(self, process: str) -> str:
        path = self._socket_path(process)
        return f"{OPEN_FOLDER}{self._directory}/{path.name}" if is_long(path) else str(path)

    def is_alive(self, process: str) -> bool | None:
        """Whether it holds its lock; ``None`` where its file is gone.

        One that can't be looked at, for want of open files here, is not dead for that.
        """
        if process == self._process:
            return True
        try:
            fd = os.open(self._lock_path(process), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            return True if error.errno in _SHORT_OF else None
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    def others(self) -> Iterator[str]:
        """All other processes that have a lock file, dead or alive."""
        for path in self._folder.glob("*.lock"):
            if path.stem != self._process:
                yield path.stem

    def living(self) -> list[str]:
        """The others that live."""
        return [process for process in self.others() if self.is_alive(process)]

    def sweep(self) -> None:
        """Remove the files of processes that were dead last time too: by now the log says so."""
        dead = {process for process in self.others() if self.is_alive(process) is False}
        for process in dead & self._dead:
            self._socket_path(process).unlink(missing_ok=True)
            self._lock_path(process).unlink(missing_ok=True)
        self._dead = dead - self._dead

    def wake(self, processes: Collection[str]) -> None:
        """Wake these processes. One that has died, or was already woken, needs nothing."""
        for process in processes:
            with contextlib.suppress(OSError):
                self._socket.sendto(b"w", self._address(process))

    def wait(self, seconds: float) -> None:
        """Return when woken, or after ``seconds``."""
        with contextlib.suppress(OSError):
            self._poll.poll(seconds * 1000)
            while True:
                self._socket.recv(16)

    def close(self) -> None:
        """Leave: others see at once that this process takes no part."""
        self._socket_path(self._process).unlink(missing_ok=True)
        self._lock_path(self._process).unlink(missing_ok=True)
        self.abandon()

    def abandon(self) -> None:
        """Close everything, and leave the files to the process that owns them."""
        self._socket.close()
        for fd in (self._lock, self._directory):
            _close(fd)
        self._lock = self._directory = -1


def _close(fd: int) -> None:
    if fd >= 0:
        os.close(fd)


def is_long(path: Path) -> bool:
    """Whether it is longer than the address of a socket may be: such a one goes by the open folder."""
    return len(os.fsencode(path)) > _LONGEST_ADDRESS
