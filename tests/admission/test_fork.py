"""Import, construction and forks: no driver before work begins, and each process measures for itself."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_admission import Admission, GPUAdmission
from tests.cases.harness import working

PRELUDE = """
import asyncio, os, sys, threading
from gpu_admission import Admission, GPUAdmission
import gpu_admission.cli, gpu_admission.devices, gpu_admission.guards, gpu_admission.observe
from gpu_admission.devices import NvmlDevice
from gpu_admission.types import Estimate

async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})

async def ask(served):
    sent = []
    async def receive():
        return {"type": "http.request", "body": b""}
    async def send(message):
        sent.append(message)
    await served({"type": "http", "method": "POST", "path": "/", "headers": []}, receive, send)
    return sent[0]["status"]

def ticking():
    return [t for t in threading.enumerate() if t.name == "gpu-admission-readings"]

def child(check):
    pid = os.fork()
    if not pid:
        try:
            check()
            os._exit(0)
        except BaseException as error:
            print(f"child: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

served = GPUAdmission(app, devices=[NvmlDevice(0, env={})], estimator="1GiB")
admission = served.admission
assert not {"torch", "pynvml"} & set(sys.modules), "loaded at import or construction"
from tests.devices.fake_nvml import MIB, FakeDriver, a10, installed
gpu = a10()
"""

PRELOADED = """
with installed(FakeDriver(gpu)) as fake:
    assert not ticking()
    def serves():
        assert asyncio.run(ask(served)) == 200
        assert {pid for pid, _ in fake.calls} == {os.getpid()}
        assert len(ticking()) == 1
    for _ in range(2):
        child(serves)
    assert not fake.calls, "the parent touched the driver"
"""

HAS_SERVED = """
async def parent():
    lease = await admission.entrance.acquire(Estimate(2**30))
    before = admission.snapshot().capacity
    gpu.used += 4096 * MIB
    child(lambda: asyncio.run(serves(lease, before)))
    assert admission.in_use == 2**30
    assert admission.snapshot().capacity == before
    lease.release()
    assert await ask(served) == 200
    assert admission.in_use == 0

async def serves(lease, before):
    assert await ask(served) == 200
    snapshot = admission.snapshot()
    assert snapshot.in_use == 0, "the parent's lease is not held here"
    assert snapshot.capacity < before - 3 * 2**30, "measured anew, by what is free now"
    assert len(ticking()) == 1, "and watched by a thread of its own"
    lease.release()
    assert admission.in_use == 0, "nor is it given back here"
    assert (await admission.entrance.acquire(Estimate(snapshot.capacity))).bytes == snapshot.capacity

with installed(FakeDriver(gpu)):
    asyncio.run(parent())
"""

IN_SHADOW = """
shadow = Admission(devices=[NvmlDevice(0, env={})], estimator="1GiB", mode="shadow")
async def hold():
    return await shadow.entrance.acquire(Estimate(2**30))

def measured():
    asyncio.run(hold())
    shadow.monitor._aside.join(30)
    asyncio.run(hold())
    assert len(ticking()) == 1

def serves():
    measured()
    assert shadow.in_use == 2 * 2**30

with installed(FakeDriver(gpu)):
    measured()
    child(serves)
"""

STARTED_BEFORE = """
async def start():
    await admission.startup.begin()

def serves():
    asyncio.run(start())
    assert len(ticking()) == 1
    assert admission.snapshot().capacity > 19 * 2**30
    assert asyncio.run(ask(served)) == 200

with installed(FakeDriver(gpu)):
    asyncio.run(start())
    child(serves)
"""


@pytest.mark.parametrize(
    "program",
    [PRELOADED, HAS_SERVED, IN_SHADOW, STARTED_BEFORE],
    ids=["preloaded", "served", "shadow", "started"],
)
def test_bl_75_each_process_measures_and_watches_for_itself(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + program],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def test_a_forked_child_joins_a_shared_budget_by_itself_and_what_the_parent_holds_counts(
    tmp_path: Path,
) -> None:
    code = """
place = sys.argv[1]
admission = Admission(capacity=100, estimator=1, shared=place, timeout=0)

async def in_child():
    try:
        await admission.entrance.acquire(Estimate(40))
        raise SystemExit("the parent's bytes were given out again")
    except gpu_admission.QueueTimeout:
        pass
    lease = await admission.entrance.acquire(Estimate(30))
    assert admission.snapshot().in_use == 100
    assert len(admission.snapshot().members) == 2
    lease.release()
    await admission.aclose()

async def in_parent():
    async with admission.lease(70):
        child(lambda: asyncio.run(in_child()))
        assert admission.snapshot().in_use == 70
        child(lambda: os._exit(0))  # one that never asks for anything
        assert admission.snapshot().in_use == 70
    await admission.aclose()

def child(check):
    from concurrent.futures import ThreadPoolExecutor
    pid = os.fork()
    if not pid:
        try:
            with ThreadPoolExecutor(1) as other:  # the parent's loop is running in this thread
                other.submit(check).result()
            os._exit(0)
        except BaseException as error:
            print(f"child: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

asyncio.run(in_parent())
"""
    prelude = "import asyncio, os, sys\nimport gpu_admission\nfrom gpu_admission import Admission\n"
    prelude += "from gpu_admission.types import Estimate\n"
    run = subprocess.run(
        [sys.executable, "-c", prelude + code, str(tmp_path / "gpu0")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("copied", [pickle.dumps, copy.deepcopy])
def test_one_that_is_sent_to_a_spawned_process_says_what_to_do_instead(copied: Callable[[Any], Any]) -> None:
    admission = Admission(capacity=100, estimator=1)
    for sent in (admission, GPUAdmission(working, admission=admission)):
        with pytest.raises(TypeError, match=r"build one in each, with the same shared="):
            copied(sent)
