"""The demo's web workers, which write down the bytes they hold while the engine works. No test lives here."""

from __future__ import annotations

import os
import sys
import time
from itertools import count
from pathlib import Path

import msgspec

from gpu_admission.demo import workers
from gpu_admission.demo.protect import Bytes
from gpu_admission.types import ASGIApp, Receive, Scope, Send

REPORTS = "AUDIT_REPORTS"


class Audited:
    """Writes a line when work on a lease's bytes begins, and another before the lease ends."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._numbers = count()
        path = Path(os.environ[REPORTS]) / f"{os.getpid()}.txt"
        self._report = path.open("a", buffering=1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        lease = scope.get("gpu_admission.lease")
        if lease is None:
            return await self._app(scope, receive, send)
        name = f"{os.getpid()}-{next(self._numbers)}"
        self._say("+", lease.bytes, name)
        try:
            await self._app(scope, receive, send)
        finally:
            self._say("-", lease.bytes, name)

    def _say(self, sign: str, size: int, name: str) -> None:
        self._report.write(f"{sign} {time.clock_gettime(time.CLOCK_BOOTTIME)} {size} {name}\n")


def build() -> ASGIApp:
    """Inside a worker."""
    return workers.build(Audited)


def main(settings: workers.Settings) -> None:
    """Inside the child, as in the demo."""
    assert isinstance(settings.protection, Bytes)
    (Path(os.environ[REPORTS]) / "capacity").write_text(str(settings.protection.capacity))
    workers.main(settings, "tests.demo.auditedworkers:build")


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=workers.Settings))
