"""A folder on this host as the log: the embedded default, with no service to run.

Owns the folder: whose it is, where it is, and how a lost or foreign log in it is begun anew. The
file is in ``logfile``; who lives and who is woken is in ``presence``.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Collection
from pathlib import Path

from gpu_admission.shared.logfile import LogFile
from gpu_admission.shared.operations import Open, encode
from gpu_admission.shared.presence import OPEN_FOLDER, Presence, is_long
from gpu_admission.shared.protocol import Listener, LogAway

_NETWORK = {
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "ceph",
    "lustre",
    "afs",
    "gpfs",
    "beegfs",
    "glusterfs",
}
_LONG = 1 << 19
"""Bytes of entries in one file: about 8,000, which a newcomer reads in less than 100 ms on a slow machine."""
_LOOK = 1.0
_PAGE = bytes(4096)
"""An entry that says nothing, and needs room that the file does not have yet."""
_ESCAPED = re.compile(r"\\([0-7]{3})")
"""How the kernel writes a space, tab, line's end or backslash in a path."""


class FolderLog:
    """``FolderLog("/dev/shm/gpu0")``. ``settle``: seconds for which a log that was lost grants nothing.

    Bytes of a process that was killed come back within 0.5 s while somebody waits.
    """

    is_immediate = True
    knows_deaths = True

    def __init__(self, folder: str | os.PathLike[str], *, settle: float = 10.0, long: int = _LONG) -> None:
        self._folder = Path(folder).absolute()
        self.where = str(self._folder)
        self._settle = settle
        self._long = long
        self._file = LogFile(self._folder, _boot_id())
        self._away = False
        self._look_every = min(_LOOK, settle / 4)
        self._look_at = 0.0

    @property
    def lifeline(self) -> int:
        return self._presence.lifeline

    def is_used(self) -> bool:
        """Whether any process has used it; makes nothing. What is no usable folder is left to ``start``."""
        return not self._folder.is_dir() or not os.access(self._folder, os.R_OK) or self._file.is_there

    def start(self, process: str, listener: Listener) -> None:
        self._process, self._listener = process, listener
        try:
            self._start(prepare_folder(self._folder))
        except (OSError, LogAway) as error:
            said = error.strerror if isinstance(error, OSError) else error
            raise ValueError(
                f"the shared budget {self.where} can't be used ({said}): shared= must name a folder that "
                "this user can make and write to, with some MiB free, such as one in /dev/shm"
            ) from error

    def _start(self, is_new: bool) -> None:
        self._file.remove_other_boots()
        self._presence = Presence(self._folder, self._process)
        try:
            orphans = is_new and _sockets_in(self._folder, besides=self._process)
            lost = orphans or any(map(self._presence.has_joined, self._presence.living()))
            self._open(self._first(self._settle if lost else 0.0))
            self._presence.join()
            self._read_all()
        except BaseException:
            self._presence.close()
            self._file.close()
            raise

    def _first(self, settle: float, why: str = "") -> bytes:
        return encode("", 0, Open(settle, expires=False, why=why))

    def _open(self, first: bytes) -> None:
        """Begin to read the log that is there, or else a new one."""
        while True:
            try:
                self._snapshot = self._file.open()
                return
            except FileNotFoundError:
                self._file.create(first)

    def _read_all(self) -> None:
        self._listener.restarted(self._snapshot)
        self._report()
        self._listener.came_back()

    def _report(self) -> None:
        """All entries that are there, through as many files as they fill."""
        while True:
            entries = self._file.read()
            if entries:
                self._listener.received(entries)
            if not self._file.is_sealed:
                return
            self._go_on()

    def _go_on(self) -> None:
        """Go on in the next file, which is made by whoever gets there first."""
        try:
            while not self._file.open_next():
                self._file.create_next(self._listener.snapshot())
        except FileNotFoundError:
            self._begin_again()

    def _begin_again(self) -> None:
        """Start over with what is there now: nothing leads there from our file."""
        self._file.drop_if_short()
        self._open(self._first(self._settle, "the log was lost"))
        self._read_all()

    def append(self, data: bytes) -> None:
        if self._away:
            return  # out of order it would leave a hole: everything is appended again when the log is back
        try:
            if time.monotonic() >= self._look_at:
                self._look()
            self._append(data)
        except (LogAway, OSError) as error:
            self._went_away(error)

    def _append(self, data: bytes) -> None:
        """Add an entry, and read all up to it."""
        while True:
            self._file.write(data)
            entries = self._file.read()
            if entries:
                self._listener.received(entries)
            if not self._file.is_sealed:
                if not entries:  # not even our own: the file was cut short
                    self._begin_again()
                elif self._file.grown >= self._long:
                    self._go_on_in_a_new_file()
                return
            counts = any(entry.data == data for entry in entries)
            self._report()
            if counts:
                return

    def _go_on_in_a_new_file(self) -> None:
        """A newcomer reads the newest file alone, so that one must not become long."""
        self._file.seal()
        self._report()
        self._presence.sweep()

    def _went_away(self, error: Exception) -> None:
        self._away = True
        said = error.strerror if isinstance(error, OSError) else error
        self._listener.went_away(
            f"the shared budget {self.where} can't be read or written ({said}): see that its disk has room, "
            "and that the folder is this user's"
        )

    def catch_up(self) -> bool:
        try:
            self._report()
            self._look()
            if self._away:
                self._file.write(_PAGE)  # else it would be away again with the first entry
                self._away = False
                self._listener.came_back()
        except (LogAway, OSError) as error:
            self._went_away(error)
        return not self._away

    def _look(self) -> None:
        """Check that the folder is still ours; only now and then, since that costs as much as an entry."""
        self._look_at = time.monotonic() + self._look_every
        if self._presence.is_gone:
            self._show_again()
        if self._file.is_gone:
            self._report()  # read what came before it was removed: it may have been sealed
            if self._file.is_gone:
                self._begin_again()

    def _show_again(self) -> None:
        """The folder was removed, or cleaned: make this process visible again."""
        try:
            prepare_folder(self._folder)
        except ValueError as error:  # somebody made another in its place
            raise LogAway(str(error)) from error
        self._presence.show()
        self._presence.join()

    def wake(self, processes: Collection[str]) -> None:
        self._presence.wake(processes)

    def wait(self, seconds: float) -> None:
        self._presence.wait(seconds)

    def is_alive(self, process: str) -> bool | None:
        return self._presence.is_alive(process)

    def now(self) -> float:
        """The log's time: seconds of the clock that stamps its entries."""
        return self._file.now() / 1e9

    def stop(self) -> None:
        self._presence.wake({self._process})  # the waiting thread must end now, not at its next beat
        self._presence.close()
        self._file.close()


def prepare_folder(folder: Path) -> bool:
    """Make ``folder`` for its owner alone; returns whether it was made now.

    Raises ``ValueError`` if others may use it, or if it is on a network file system, where locks
    and sockets don't reach everyone who sees it.
    """
    try:
        folder.mkdir(mode=0o700, parents=True)
        is_new = True
    except FileExistsError:
        is_new = False
    said = folder.lstat()
    if stat.S_ISLNK(said.st_mode):
        raise ValueError(
            f"shared={str(folder)!r} is a symbolic link, which may be pointed elsewhere: write the folder "
            f"that it leads to, {os.path.realpath(folder)}, in all processes"
        )
    if not stat.S_ISDIR(said.st_mode):
        raise ValueError(f"shared={str(folder)!r} is no folder: name one, or a path where it can be made")
    if said.st_uid != os.geteuid() or said.st_mode & 0o077:
        raise ValueError(
            f"shared={str(folder)!r} belongs to user {said.st_uid} with mode {stat.S_IMODE(said.st_mode):o}: "
            f"it must belong to user {os.geteuid()} alone (chmod 700), who all processes of it run as"
        )
    kind = file_system(folder)
    if kind in _NETWORK or kind.startswith("fuse."):
        raise ValueError(
            f"shared={str(folder)!r} lies on a network file system ({kind}): use a folder in /dev/shm, "
            "or a redis:// address for several hosts"
        )
    return is_new


def file_system(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """The kind of file system that ``folder`` lies on; empty where that can't be known."""
    real = os.path.realpath(folder)
    best, kind = "", ""
    for line in _lines(mounts):
        fields, _, rest = line.partition(" - ")
        point = _ESCAPED.sub(lambda said: chr(int(said[1], 8)), fields.split()[4])
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, rest.split()[0]
    return kind


def _sockets_in(folder: Path, besides: str) -> bool:
    """Whether a process still listens at a path in ``folder``, from before the folder was removed."""
    inside = f" {folder}/"
    if is_long(folder / f"{besides}.wake"):
        inside = f" {OPEN_FOLDER}"  # perhaps of another budget: rather wait than give out too much
    lines = _lines(Path("/proc/net/unix"))
    return any(inside in line and line.endswith(".wake") and besides not in line for line in lines)


def _lines(file: Path) -> list[str]:
    """What the host says in ``file``; nothing where it does not. Paths in it may be of any bytes."""
    try:
        return os.fsdecode(file.read_bytes()).split("\n")[:-1]
    except OSError:
        return []


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
