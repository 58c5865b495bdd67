"""The demo's web workers, which write down the bytes they hold while the engine works. No test lives here."""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial
from itertools import count
from pathlib import Path

import httpx
import msgspec
import uvicorn

from gpu_admission.demo.process import end_with_parent, quieten, tell
from gpu_admission.demo.protect import Bytes
from gpu_admission.demo.workers import _SETTINGS, Listening, Settings, Started, _free_port, passing_on
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
    settings = msgspec.json.decode(os.environ[_SETTINGS], type=Settings)
    end_with_parent(quieten)
    http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{settings.engine}", timeout=None)
    return settings.protection.wrap(Audited(passing_on(http, lambda: tell(Started(os.getpid())))))


def main(settings: Settings) -> None:
    """Inside the child, as in the demo."""
    assert isinstance(settings.protection, Bytes)
    os.environ[_SETTINGS] = msgspec.json.encode(settings).decode()
    (Path(os.environ[REPORTS]) / "capacity").write_text(str(settings.protection.capacity))
    port = _free_port()
    tell(Listening(port))
    end_with_parent(partial(os.kill, os.getpid(), signal.SIGTERM))
    uvicorn.run(
        "tests.demo.auditedworkers:build",
        factory=True,
        port=port,
        workers=settings.count,
        log_level="error",
        timeout_graceful_shutdown=1,
    )


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Settings))
