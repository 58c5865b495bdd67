"""Plain JSON in a file: whole or not at all. What stands in it is its owner's."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write(path: str | os.PathLike[str], state: Mapping[str, Any]) -> None:
    """Write ``state`` as JSON; a reader sees the old file or the new one, never half. Raises ``OSError``."""
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        with part.open("w", encoding="utf-8") as file:
            json.dump(state, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def read(path: str | os.PathLike[str]) -> Any:
    """What ``write`` wrote; ``None`` when there is no such file. Raises ``OSError`` and ``ValueError``."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    return json.loads(text)
