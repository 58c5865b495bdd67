"""A service and a hog in one small control group, with real memory. Run by ``test_hog.py``.

The kernel kills whoever overruns the group's limit, so a request that was let in wrongly
does not go unnoticed. Prints what happened as one line of JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from gpu_admission.budget.ledger import Ledger
from gpu_admission.budget.ticket import State, Ticket
from gpu_admission.devices import HostMemory, Readings, measure
from gpu_admission.guards import MemoryGuard
from gpu_admission.guards.verdict import limit_of

REQUEST = 48 * 2**20
HOG = 400 * 2**20
HOG_CODE = f"import sys; held = bytearray(b'x') * {HOG}; print('ready', flush=True); sys.stdin.read()"


class Service:
    """The ledger, one guard, and requests that take real memory while they hold a lease."""

    def __init__(self) -> None:
        self.device = HostMemory()
        self.ledger = Ledger([0])
        self.guard = MemoryGuard(watermark="2%", reclaim=None)
        self.memory: dict[Ticket, bytearray] = {}
        self.queue: list[Ticket] = []
        self.readings = Readings([self.device], self.look, leases=self.leases, clock=lambda: 0.0)
        self.measured = measure(self.device.read(), name="host", margin=0.1)
        self.guard.begin(self.measured)
        self.ledger.resize([self.measured.bytes], 0.0)

    def leases(self, index: int) -> tuple[int, int]:
        account = self.ledger.accounts[index]
        return account.capacity, account.in_use

    def look(self, index: int) -> None:
        readings = self.readings.latest(index)
        ceiling = limit_of(self.guard, readings, (), readings[-1].taken_at).bytes
        self.start(self.ledger.allow(index, 0.0, ceiling=ceiling))

    def start(self, granted: object) -> None:
        for ticket in list(granted):  # type: ignore[call-overload]
            self.memory[ticket] = bytearray(b"x") * REQUEST

    def fill(self) -> int:
        """Ask until a request has to wait; how many run."""
        while not self.queue:
            ticket = Ticket(REQUEST)
            self.start(self.ledger.request(ticket, 0.0))
            if ticket.state is State.WAITING:
                self.queue.append(ticket)
        return len(self.memory)

    def finish(self, most: int) -> None:
        for ticket in list(self.memory)[most:]:
            del self.memory[ticket]
            self.start(self.ledger.release(ticket, 0.0))
        self.queue = [ticket for ticket in self.queue if ticket.state is State.WAITING]


def give_up_waiting(service: Service) -> None:
    for ticket in service.queue:
        service.ledger.release(ticket, 0.0)
    service.queue.clear()


def main(group: str) -> None:
    Path(group, "cgroup.procs").write_text(str(os.getpid()))
    service = Service()
    alone = service.fill()
    give_up_waiting(service)
    service.finish(2)
    hog = subprocess.Popen([sys.executable, "-c", HOG_CODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert hog.stdout is not None
    hog.stdout.readline()
    service.readings.step()
    reason = service.guard.reason
    with_hog = service.fill()
    service.readings.step()
    waiting = service.ledger.waiting
    hog.communicate()
    looks = 0
    while service.ledger.waiting and looks < 10:
        service.readings.step()
        looks += 1
    service.queue.clear()
    after = service.fill()
    print(
        json.dumps(
            {
                "alone": alone,
                "with_hog": with_hog,
                "waiting": waiting,
                "reason": reason,
                "looks": looks,
                "after": after,
                "hog": hog.returncode,
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1])
