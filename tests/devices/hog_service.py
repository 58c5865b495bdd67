"""A service behind the middleware, and a hog, in one small control group. Run by ``test_hog.py``.

Clients ask again as soon as they are answered, and each request takes real memory while it
runs: the kernel kills the process if it was let in wrongly. Prints what happened as JSON.
Nothing is told of how long things took: how soon clients ask again depends on the machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import takewhile
from pathlib import Path
from typing import Any

import anyio
import anyio.abc

from gpu_admission import GPUAdmission
from gpu_admission.devices import HostMemory
from gpu_admission.types import DeviceReading, Event, Receive, Scope, Send
from tests.cases.harness import Call, answer, read_body
from tests.waiting import until_async

REQUEST = 48 * 2**20
HOLD = 0.15
HOG = 400 * 2**20
HOG_CODE = f"import sys; held = bytearray(b'x') * {HOG}; print('ready', flush=True); sys.stdin.read()"
CROWD = 18
"""Clients that, beside the few that never stop, ask for more than there is even without a hog."""


async def work(scope: Scope, receive: Receive, send: Send) -> None:
    """Takes what it was charged, and gives it back."""
    await read_body(receive)
    memory = bytearray(b"x") * REQUEST
    await anyio.sleep(HOLD)
    del memory
    await answer(send, b"done")


class Watched(HostMemory):
    """Host memory that notes what requests might hold as each look at it began."""

    def __init__(self) -> None:
        super().__init__()
        self.service: Service | None = None
        self.allowed: list[int] = []

    def read(self) -> DeviceReading:
        if self.service is not None:
            self.allowed.append(self.service.allowed)
        return super().read()


class Service:
    """The app, its clients, and what they were answered."""

    def __init__(self) -> None:
        self.device = Watched()
        self.app = GPUAdmission(
            work, devices=[self.device], estimator=REQUEST, timeout=300, observers=[self.observe]
        )
        self.admission = self.app.admission
        self.device.service = self
        self.most_running = 0
        self.served = 0
        self.failed: list[str] = []

    def observe(self, event: Event) -> None:
        self.most_running = max(self.most_running, self.running)

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

    @property
    def allowed(self) -> int:
        """Requests that there is room for, by what the guards say now."""
        device = self.admission.snapshot().devices[0]
        return (device.capacity if device.ceiling is None else device.ceiling) // REQUEST

    async def look(self, times: int) -> None:
        """Until the device was looked at ``times`` times more, and the guards were asked each time."""
        seen = len(self.device.allowed)
        await until_async(lambda: len(self.device.allowed) > seen + times)

    async def fill(self) -> None:
        """Until a request has to wait: then all run that there is room for."""
        await until_async(lambda: self.admission.waiting)

    async def recovery(self, requests: int) -> int:
        """Looks from now on until there is room for ``requests`` again."""
        seen = len(self.device.allowed)
        await until_async(lambda: max(self.device.allowed[seen:], default=0) >= requests)
        return len(list(takewhile(lambda allowed: allowed < requests, self.device.allowed[seen:])))


def start_hog() -> subprocess.Popen[bytes]:
    hog = subprocess.Popen([sys.executable, "-c", HOG_CODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert hog.stdout is not None
    hog.stdout.readline()
    return hog


async def scene(service: Service, group: anyio.abc.TaskGroup) -> dict[str, Any]:
    few = [await group.start(service.client) for _ in range(2)]
    crowd = [await group.start(service.client) for _ in range(CROWD)]
    await service.fill()
    alone = service.running
    for asking in crowd:
        asking.cancel()
    await until_async(lambda: service.running <= len(few))
    hog = await anyio.to_thread.run_sync(start_hog)
    await service.look(2)
    reason = service.admission.snapshot().devices[0].reason
    service.most_running = 0
    crowd = [await group.start(service.client) for _ in range(CROWD)]
    await service.fill()
    await service.look(4)
    with_hog, waiting = service.most_running, service.admission.waiting
    await anyio.to_thread.run_sync(hog.communicate)
    looks = await service.recovery(alone)
    await until_async(lambda: service.running >= alone)
    for asking in (*few, *crowd):
        asking.cancel()
    return {
        "alone": alone,
        "with_hog": with_hog,
        "waiting": waiting,
        "reason": reason,
        "hog": hog.returncode,
        "looks": looks,
        "after": service.most_running,
    }


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
