"""A fork in the middle of anything: the child hangs on nothing, and takes nothing for its own that is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PRELUDE = """
import asyncio, json, os, signal, sys, threading
from gpu_admission import Admission, GPUAdmission
from gpu_admission.testing import FakeDevice

def in_child(check):
    if (pid := os.fork()) == 0:
        signal.alarm(20)
        thread = threading.Thread(target=run, args=[check])
        thread.start()
        thread.join()
        os._exit(3)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

def run(check):
    try:
        check()
        os._exit(0)
    except BaseException as error:
        print(type(error).__name__, error, file=sys.stderr, flush=True)
        os._exit(1)

def holding(lock):
    held, done = threading.Event(), threading.Event()
    def hold():
        with lock:
            held.set()
            done.wait()
    threading.Thread(target=hold, daemon=True).start()
    held.wait()
"""

MEASURED = """
go_on = asyncio.Event()
running = 0

async def app(scope, receive, send):
    global running
    running += 1
    if scope["path"] == "/slow":
        await go_on.wait()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})

device = FakeDevice("1GiB")
admission = Admission(devices=[device], estimator="auto")
served = GPUAdmission(app, admission=admission)

async def ask(path):
    sent = []
    async def receive():
        return {"type": "http.request", "body": b'{"prompt": "x"}'}
    async def send(message):
        sent.append(message)
    await served({"type": "http", "method": "POST", "path": path, "headers": []}, receive, send)
    return sent[0]["status"]

async def asked_in_child():
    assert admission.snapshot().in_use == 0
    assert await asyncio.gather(*(ask("/fast") for _ in range(5))) == [200] * 5
    assert admission.snapshot().in_use == 0

async def main():
    first = asyncio.create_task(ask("/slow"))
    while not running:
        await asyncio.sleep(0)
    in_child(lambda: asyncio.run(asked_in_child()))
    go_on.set()
    await first
    assert admission.snapshot().in_use == 0

asyncio.run(main())
"""

SAME_ROUTE = MEASURED.replace('ask("/fast")', 'ask("/slow")').replace(
    "async def asked_in_child():", "async def asked_in_child():\n    go_on.set()"
)

LEARNED = """
from gpu_admission.estimators import Learned, Linear
learned = Learned(Linear({"new_tokens": 10}), usage=True)
admission = Admission(capacity=1000, estimator=learned)
holding(learned._lock)
in_child(learned.to_dict)
"""

SCRAPED = """
from prometheus_client import CollectorRegistry
from gpu_admission.observe import Metrics
metrics = Metrics(registry=CollectorRegistry())
admission = Admission(capacity=1000, estimator=1, observers=[metrics])
holding(metrics._backlog._lock)
in_child(metrics.refresh)
"""

KEPT = """
from gpu_admission.estimators import Learned, Linear
admission = Admission(
    capacity=1000, estimator=Learned(Linear({"new_tokens": 10}), usage=True), state=sys.argv[1]
)
holding(admission.kept._saving)
in_child(admission.kept.save)
"""

SHADOW = """
from gpu_admission.admission.shadow import ShadowSummary
from gpu_admission.types import Event
timers = []
class Timer:
    def __init__(self, seconds, say):
        timers.append(say)
    def start(self):
        pass
admission = Admission(capacity=1000, estimator=1)
summary = ShadowSummary(timer=Timer)
summary.watch(admission)
event = Event(kind="shadow", at=0.0, route="*", lane="default")
summary(event)
def counted():
    summary(event)
    assert len(timers) == 2, timers
in_child(counted)
"""


@pytest.mark.parametrize(
    "program",
    [MEASURED, SAME_ROUTE, LEARNED, SCRAPED, KEPT, SHADOW],
    ids=["measured", "same route", "learned", "scraped", "kept", "shadow"],
)
def test_a_child_that_is_forked_while_its_parent_is_at_work_goes_on_by_itself(
    program: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + program, str(tmp_path / "state.json")],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.returncode) == ("0\n", 0), done.stderr
