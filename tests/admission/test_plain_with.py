"""A plain ``with admission.lease(...)`` where no event loop runs: a Celery task, a training script."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from gpu_admission import Admission, Estimate, QueueTimeout, TooLarge, cli, current_lease
from gpu_admission.runtime.home import OwnLoop
from tests.shared.redisserver import Server, needs_server
from tests.waiting import until


@pytest.fixture(params=["alone", "folder"])
def admission(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Admission]:
    shared: dict[str, Any] = {"shared": str(tmp_path / "gpu0")} if request.param == "folder" else {}
    admission = Admission(capacity=100, estimator=1, **shared)
    yield admission
    anyio.run(admission.aclose)


@contextmanager
def held_by_another(admission: Admission) -> Iterator[None]:
    """60 bytes, by a thread of its own."""
    ends, begun = threading.Event(), threading.Event()

    def hold() -> None:
        with admission.lease(60):
            begun.set()
            ends.wait(20)

    (thread,) = in_threads(hold)
    begun.wait(20)
    try:
        yield
    finally:
        ends.set()
        thread.join(20)


def in_threads(*calls: Callable[[], object]) -> list[threading.Thread]:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    return threads


def test_a_program_without_a_loop_holds_bytes_and_gives_them_back(admission: Admission) -> None:
    with admission.lease(60) as lease:
        assert current_lease() is lease
        assert (lease.bytes, admission.in_use) == (60, 60)
    assert admission.in_use == 0


def test_its_threads_wait_for_each_other(admission: Admission) -> None:
    at_once: list[int] = []

    def task() -> None:
        with admission.lease(60):
            at_once.append(admission.in_use)

    with admission.lease(60):
        threads = in_threads(*[task] * 4)
        until(lambda: admission.waiting == 4)
    for thread in threads:
        thread.join(20)
    assert at_once == [60] * 4
    assert (admission.in_use, admission.waiting) == (0, 0)


def test_refusals_are_raised_and_counted(admission: Admission) -> None:
    with pytest.raises(TooLarge):
        admission.lease(101).__enter__()
    with held_by_another(admission), pytest.raises(QueueTimeout):
        admission.lease(60, timeout=0.01).__enter__()
    counts = admission.snapshot().counts
    assert (counts["too_large"], counts["queue_timeout"]) == (1, 1)
    assert admission.in_use == 0


class TimeLimit(Exception):
    """As Celery raises it, out of a signal's handler."""


def test_a_signal_that_ends_the_wait_leaves_nothing_behind(admission: Admission) -> None:
    def give_up(*_: object) -> None:
        raise TimeLimit

    def strike() -> None:
        until(lambda: admission.waiting == 1)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, give_up)
    try:
        with held_by_another(admission):
            (striking,) = in_threads(strike)
            with pytest.raises(TimeLimit):
                admission.lease(60).__enter__()
            until(lambda: admission.waiting == 0)
            striking.join(20)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert admission.in_use == 0


def test_what_waits_goes_on_in_the_loop_that_the_program_runs_later(
    admission: Admission, anyio_backend_name: str
) -> None:
    """As when a server begins while a thread of its app waits already."""
    got: list[int] = []

    def task() -> None:
        with admission.lease(60) as lease:
            got.append(lease.bytes)

    async def serve() -> None:
        ours = await admission.entrance.acquire(Estimate(10))  # by `lease` it would be a part of the first
        await anyio.to_thread.run_sync(until, lambda: admission.waiting == 1)
        first.__exit__(None, None, None)
        await anyio.to_thread.run_sync(thread.join, 20)
        ours.release()

    first = admission.lease(60)
    first.__enter__()
    (thread,) = in_threads(task)
    until(lambda: admission.waiting == 1)
    anyio.run(serve, backend=anyio_backend_name)
    assert got == [60]
    with admission.lease(60):  # and that loop has ended now
        assert admission.in_use == 60
    assert (admission.in_use, admission.waiting) == (0, 0)


def test_its_thread_ends_with_the_admission() -> None:
    def loops() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "gpu_admission.loop"]

    admission = Admission(capacity=100, estimator=1)
    before = loops()
    with admission.lease(1):
        (own,) = [thread for thread in loops() if thread not in before]
    del admission
    gc.collect()
    own.join(20)
    assert not own.is_alive()


def test_what_is_left_in_a_loop_that_ends_is_cancelled() -> None:
    begun, ended = threading.Event(), threading.Event()

    async def wait() -> None:
        try:
            begun.set()
            await anyio.sleep_forever()
        finally:
            ended.set()

    own = OwnLoop()
    own.ask(wait)
    assert begun.wait(20)
    del own
    assert ended.wait(20)


PREFORK = """
import os, sys, time
from gpu_admission import Admission

admission = Admission(capacity=100, estimator=1, timeout=60, shared=sys.argv[1], lease_ttl=2.0)

def task(number):
    with admission.lease(60):
        began = time.monotonic()
        time.sleep(0.02)
        os.write(1, f"{began} {time.monotonic()} {os.getpid()}\\n".encode())

if sys.argv[2] == "used before":
    task(0)
workers = []
for _ in range(3):
    pid = os.fork()
    if not pid:
        for number in range(4):
            task(number)
        os._exit(0)
    workers.append(pid)
for pid in workers:
    assert os.waitpid(pid, 0)[1] == 0
with admission.lease(100):
    print("all back")
"""


@pytest.mark.parametrize("when", ["new", "used before"])
@pytest.mark.parametrize("kind", ["folder", pytest.param("redis", marks=needs_server)])
def test_forked_workers_with_plain_tasks_share_one_budget(kind: str, when: str, tmp_path: Path) -> None:
    """As Celery does: the app is imported once, its workers are forked, and their tasks know no loop."""
    server = Server(tmp_path / "redis") if kind == "redis" else None
    place = str(tmp_path / "gpu0") if server is None else server.address
    said = subprocess.run(
        [sys.executable, "-c", PREFORK, place, when],
        env={**os.environ, "PYTHONWARNINGS": ""},
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=True,
    ).stdout.splitlines()
    if server is not None:
        server.stop()
    assert said.pop() == "all back"
    spans = sorted(tuple(map(float, line.split())) for line in said)
    assert len({pid for _, _, pid in spans}) == 3 + (when == "used before")
    assert all(ended <= began for (_, ended, _), (began, _, _) in pairwise(spans))


ENDS = """
import os, sys, threading
from gpu_admission import Admission

admission = Admission(capacity=100, estimator=1, shared=sys.argv[1], lease_ttl=1.0)
how = sys.argv[2]
with admission.lease(60):
    pass
if how == "exits":
    sys.exit(3)
if how == "raises":
    raise ValueError
if how == "works still":
    admission.lease(60).__enter__()
if how == "has forked":
    (before,) = admission.snapshot().members
    child = os.fork()
    if not child:
        sys.exit(0)
    os.waitpid(child, 0)
    with admission.lease(60):
        (member,) = admission.snapshot().members
        assert member.name == before.name
"""
HOW = {"ends": (0, []), "exits": (3, []), "raises": (1, []), "works still": (0, [60]), "has forked": (0, [])}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("kind", ["folder", pytest.param("redis", marks=needs_server)])
def test_a_program_that_ends_has_left_its_shared_budget_if_it_holds_nothing(
    kind: str, how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else it would be told as dead in all others, and over Redis be a member for another ``lease_ttl``."""
    server = Server(tmp_path / "redis") if kind == "redis" else None
    place = str(tmp_path / "gpu0") if server is None else server.address
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", ENDS, place, how]
    ended = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=120)
    assert cli.main(["budget", "show", "--json", place]) == 0
    members = json.loads(capsys.readouterr().out)["members"]
    if server is not None:
        server.stop()
    assert (ended.returncode, [member["bytes"] for member in members]) == HOW[how], ended.stderr
    assert ended.stderr.count("\n") <= 2 + 4 * (how == "raises"), ended.stderr
