"""From what a user writes as ``shared=`` to a log: a folder, an address, or an object."""

from __future__ import annotations

import os
from typing import Any

from gpu_admission.shared.folder import FolderLog
from gpu_admission.shared.protocol import Log
from gpu_admission.shared.redisaddress import load_library, parse
from gpu_admission.shared.redislog import RedisLog


def open_log(shared: Any, *, lease_ttl: float = 10.0) -> Log:
    """The log that ``shared`` means. Nothing is made or connected before its ``start``.

    ``"/dev/shm/gpu0"`` (or a ``Path``): the processes of one host. ``"redis://host/0?name=gpu0"``
    (see ``redisaddress``): those of several. An object with the methods of ``protocol.Log`` is
    used as it is. Raises ``TypeError`` or ``ValueError`` that names ``shared``, and ``ImportError``.
    """
    if isinstance(shared, str) and "://" in shared:
        address = parse(shared)
        load_library()
        address.check()
        return RedisLog(address, settle=lease_ttl)
    if isinstance(shared, (str, os.PathLike)):
        if not os.path.isabs(shared) or (os.fspath(shared).startswith("//") and "@" in os.fspath(shared)):
            raise ValueError(f"shared={_shown(shared)!r} must be an absolute path, or a redis:// address")
        return FolderLog(shared, settle=lease_ttl)
    missing = [name for name in Log.__dict__ if not name.startswith("_") and not hasattr(shared, name)]
    if missing:
        raise TypeError(
            f"shared must be a folder, a redis:// address or a log, not {type(shared).__name__} "
            f"(it lacks {', '.join(missing)})"
        )
    log: Log = shared
    return log


def _shown(path: str | os.PathLike[str]) -> str:
    """``path`` for people; hidden where it may be an address with a password, which lacks its scheme."""
    text = os.fspath(path)
    return "***" if "@" in text or ":" in text else text
