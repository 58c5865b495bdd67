"""Requests that wait are charged more once it is known that their charges were too low."""

from __future__ import annotations

import json

import anyio
import pytest

from gpu_admission import GPUAdmission, current_lease
from gpu_admission.estimators import Learned, Linear
from gpu_admission.types import Receive, Scope, Send
from tests.bench.asgi import call, scope_of
from tests.http.test_answer import PATH, Says, chat_of, served

pytestmark = pytest.mark.anyio

BODY = json.dumps({"messages": [{"role": "user", "content": "x" * 40}], "max_tokens": 4096}).encode()


class Held:
    """An app whose answers of 200 tokens go out one by one, when ``finish`` is called."""

    def __init__(self) -> None:
        self.gates: list[anyio.Event] = []
        self.running = 0
        self.fails = False
        self._says = Says("json", chat_of(200))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gate = anyio.Event()
        self.gates.append(gate)
        self.running += 1
        await gate.wait()
        self.running -= 1
        if self.fails:
            lease = current_lease()
            assert lease is not None
            lease.report_oom()
        await self._says(scope, receive, send)

    async def finish(self, count: int) -> None:
        for gate in self.gates[:count]:
            gate.set()
        del self.gates[:count]
        await anyio.wait_all_tasks_blocked()


def learner() -> Learned:
    return Learned(Linear({"new_tokens": 1000}), usage=True)


async def test_an_out_of_memory_raises_the_charges_of_those_that_wait_as_well() -> None:
    estimator, held = learner(), Held()
    await served(Says("json", chat_of(200)), estimator, times=120)
    gate = GPUAdmission(held, capacity=5_000_000, estimator=estimator, guards=(), timeout=60.0)
    async with anyio.create_task_group() as group:
        for _ in range(60):
            group.start_soon(call, gate, scope_of(PATH), BODY)
        await anyio.wait_all_tasks_blocked()
        assert held.running == 25
        assert {waiting.bytes for waiting in gate.admission.queue()} == {200_000}
        held.fails = True
        await held.finish(1)
        held.fails = False
        assert {waiting.bytes for waiting in gate.admission.queue()} == {4_096_000}
        assert gate.admission.in_use <= 5_000_000
        while held.running:
            assert held.running <= 26
            await held.finish(1)
    assert gate.admission.in_use == 0


async def test_those_that_wait_keep_their_charge_while_less_is_learned() -> None:
    estimator, held = learner(), Held()
    await served(Says("json", chat_of(200)), estimator, times=70)
    gate = GPUAdmission(held, capacity=9_000_000, estimator=estimator, guards=(), timeout=60.0)
    async with anyio.create_task_group() as group:
        for _ in range(60):
            group.start_soon(call, gate, scope_of(PATH), BODY)
        await anyio.wait_all_tasks_blocked()
        first = held.running
        (charged,) = {waiting.bytes for waiting in gate.admission.queue()}
        await held.finish(first)
        assert {waiting.bytes for waiting in gate.admission.queue()} == {charged}
        while held.running:
            await held.finish(first)
            assert held.running <= first
    assert gate.admission.in_use == 0
