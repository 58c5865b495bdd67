"""What this process claims to use alone on this host, for other processes of the same user to see.

A claim is a locked file in the directory for temporary files: the kernel gives it back however the
process ends. Owns these files; what is claimed is the caller's business.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
import tempfile
from pathlib import Path


class Claims:
    """This process's claims, by what was claimed."""

    def __init__(self) -> None:
        self._files: dict[str, int] = {}

    def claim(self, what: str) -> bool:
        """Whether no other process has claimed ``what``, as far as that can be known.

        This one keeps the claim until its end; claiming it again does nothing.
        """
        if what in self._files:
            return True
        with contextlib.suppress(OSError):
            name = hashlib.blake2b(what.encode(), digest_size=12).hexdigest()
            fd = os.open(_folder() / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                return False
            self._files[what] = fd
        return True

    def drop(self) -> None:
        """Give all claims back."""
        while self._files:
            os.close(self._files.popitem()[1])


def _folder() -> Path:
    """Raises ``OSError`` if another user has made it."""
    folder = Path(tempfile.gettempdir()) / f"gpu_admission-{os.geteuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    said = folder.lstat()
    if not stat.S_ISDIR(said.st_mode) or said.st_uid != os.geteuid():
        raise PermissionError(str(folder))
    return folder
