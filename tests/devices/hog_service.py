"""A service behind the middleware, and a hog, in one small control group. Run by ``test_hog.py``.

Clients ask again as soon as they are answered, and each request takes real memory while it
runs: the kernel kills the process if it was let in wrongly. Prints what happened as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.abc

from gpu_admission import GPUAdmission
from gpu_admission.devices import HostMemory
from gpu_admission.types import Event, Receive, Scope, Send
from tests.cases.harness import Call, answer, read_body

REQUEST = 48 * 2**20
HOLD = 0.15
HOG = 400 * 2**20
HOG_CODE = f"import sys; held = bytearray(b'x') * {HOG}; print('ready', flush=True); sys.stdin.read()"


async def work(scope: Scope, receive: Receive, send: Send) -> None:
    """Takes what it was charged, and gives it back."""
    await read_body(receive)
    memory = bytearray(b"x") * REQUEST
    await anyio.sleep(HOLD)
    del memory
    await answer(send, b"done")


class Service:
    """The app, its clients, and what they were answered."""

    def __init__(self) -> None:
        self.changed = anyio.Event()
        self.app = GPUAdmission(
            work, devices=[HostMemory()], estimator=REQUEST, timeout=60, observers=[self.observe]
        )
        self.admission = self.app.admission
        self.served = 0
        self.failed: list[str] = []

    def observe(self, event: Event) -> None:
        changed, self.changed = self.changed, anyio.Event()
        changed.set()

    async def client(self, *, task_status: anyio.abc.TaskStatus[anyio.CancelScope]) -> None:
        """Asks again and again; when it is to stop, its last request is served to the end."""
        with anyio.CancelScope() as asking:
            task_status.started(asking)
            while not asking.cancel_called:
                with anyio.CancelScope(shield=True):
                    await self.ask()
                await anyio.lowlevel.checkpoint()

    async def ask(self) -> None:
        call = Call(self.app)
        await call.run()
        if call.error is None and call.status == 200:
            self.served += 1
        else:
            self.failed.append(f"{type(call.error).__name__} {call.sent[:1]}")

    @property
    def running(self) -> int:
        return self.admission.snapshot().running

    async def most_running(self, seconds: float) -> int:
        """Most requests that ran at once, while ``seconds`` passed."""
        most, until = 0, time.monotonic() + seconds
        while time.monotonic() < until:
            most = max(most, self.running)
            await anyio.sleep(0.02)
        return most

    async def until(self, holds: Callable[[int], bool]) -> float:
        """Seconds until ``holds(requests that run at once)``."""
        begin = time.monotonic()
        with anyio.fail_after(20):
            while not holds(self.running):
                await self.changed.wait()
        return time.monotonic() - begin


def start_hog() -> subprocess.Popen[bytes]:
    hog = subprocess.Popen([sys.executable, "-c", HOG_CODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert hog.stdout is not None
    hog.stdout.readline()
    return hog


def looks(service: Service) -> float:
    """Number of the last reading; readings come half a second apart."""
    reading = service.admission.snapshot().devices[0].reading
    return 0.0 if reading is None else reading.taken_at


async def scene(service: Service, group: anyio.abc.TaskGroup) -> dict[str, Any]:
    few = [await group.start(service.client) for _ in range(2)]
    crowd = [await group.start(service.client) for _ in range(14)]
    alone = await service.most_running(2)
    for asking in crowd:
        asking.cancel()
    await service.until(lambda running: running <= len(few))
    hog = await anyio.to_thread.run_sync(start_hog)
    await anyio.sleep(1.5)
    reason = service.admission.snapshot().devices[0].reason
    crowd = [await group.start(service.client) for _ in range(14)]
    with_hog = await service.most_running(3)
    waiting = service.admission.waiting
    await anyio.to_thread.run_sync(hog.communicate)
    seen = looks(service)
    recovery = await service.until(lambda running: running >= alone)
    told = {
        "alone": alone,
        "with_hog": with_hog,
        "waiting": waiting,
        "reason": reason,
        "hog": hog.returncode,
        "recovery_seconds": round(recovery, 2),
        "looks": round((looks(service) - seen) / 0.5),
        "after": await service.most_running(1),
    }
    for asking in (*few, *crowd):
        asking.cancel()
    return told


async def main() -> None:
    service = Service()
    await service.admission.startup.begin()
    async with anyio.create_task_group() as group:
        told = await scene(service, group)
    await service.admission.aclose()
    assert service.admission.in_use == 0
    print(json.dumps({**told, "served": service.served, "failed": service.failed}))


if __name__ == "__main__":
    Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
    anyio.run(main)
