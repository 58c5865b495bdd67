"""Where several processes of one test share a budget. No test lives here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpu_admission.shared.memory import MemoryHub, MemoryLog
from gpu_admission.shared.process import boot_seconds
from tests.shared.redisserver import Server


class Places:
    """Where processes meet: ``new()`` is what the next of them gives as ``shared``."""

    def __init__(self, kind: str, tmp_path: Path) -> None:
        self._hub = MemoryHub(knows_deaths=True, clock=boot_seconds)
        self._folder = str(tmp_path / "gpu0")
        self._server = Server(tmp_path / "redis") if kind == "redis" else None
        self._kind = kind

    def new(self) -> Any:
        if self._server is not None:
            return self._server.address
        return self._folder if self._kind == "folder" else MemoryLog(self._hub)

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
