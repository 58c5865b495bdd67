"""Faults that were found by trying, by their ids: what must not leak, hang, or promise too much."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from gpu_admission import Admission, Estimate, GPUAdmission, RequestInfo
from gpu_admission.admission.refusals import retry_after
from gpu_admission.devices.discover import Discovery
from gpu_admission.estimators import Learned
from gpu_admission.estimators.diffusion import Diffusion
from gpu_admission.guards import readiness
from gpu_admission.observe.decisions import DecisionLog
from gpu_admission.runtime.turn import Turn
from gpu_admission.types import Event
from tests.bench.asgi import call, echo, scope_of
from tests.cards import Card, HandClock, look
from tests.observe.events import event

ROOT = Path(__file__).parents[2]


def run_program(program: str) -> str:
    """What a program prints that ends by itself."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# forks

SCRAPED = """
import os, signal, threading
from gpu_admission import Admission
admission = Admission(capacity=100, estimator=1)
inside, done = threading.Event(), threading.Event()
def scrape():
    with admission.locked:  # as a thread that takes a snapshot just when the process forks
        inside.set()
        done.wait()
threading.Thread(target=scrape, daemon=True).start()
inside.wait()
if (pid := os.fork()) == 0:
    signal.alarm(20)
    admission.snapshot(), admission.report(), admission.queue(), admission.drain(), admission.resize(50)
    os._exit(0)
print(os.waitpid(pid, 0)[1])
done.set()
"""

DRAINED = """
import anyio, os
from gpu_admission import Admission, Unavailable
admission = Admission(capacity=100, estimator=1)
async def use():
    async with admission.lease(10):
        pass
if os.fork() == 0:
    admission.drain()
    try:
        anyio.run(use)
    except Unavailable:
        os._exit(7)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.wait()[1]), admission.snapshot().draining)
"""

RESIZED = """
import os
from gpu_admission import Admission
admission = Admission(capacity=100, estimator=1)
admission.resize(40)
if os.fork() == 0:
    os._exit(admission.snapshot().capacity)
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_f2_in_a_forked_process_nothing_waits_for_a_lock_of_the_parents_threads() -> None:
    assert run_program(SCRAPED) == "0"


def test_f2b_a_forked_process_that_drains_lets_nothing_in_and_its_parent_goes_on() -> None:
    assert run_program(DRAINED) == "7 False"


def test_a_capacity_that_was_set_before_the_fork_holds_after_it() -> None:
    assert run_program(RESIZED) == "40"


# the collector


class Stream:
    """A generator's frame that holds a lease, as the collector finds it."""

    def __init__(self, lease: Any) -> None:
        self.lease = lease

    def __del__(self) -> None:
        self.lease.finish(None)


@pytest.mark.anyio
async def test_m7_thousands_of_leases_that_one_collection_ends_in_the_middle_of_a_change_end_one_by_one() -> (
    None
):
    admission = Admission(capacity=2**40, estimator=1)
    cell: list[Any] = [Stream(await admission.entrance.acquire(Estimate(1000))) for _ in range(5000)]
    cell.append(cell)
    with admission.locked:
        del cell
        gc.collect()
        assert admission.in_use == 5_000_000
    assert admission.in_use == 0


def test_what_interrupts_a_turn_comes_after_it_whichever_thread_is_through_last() -> None:
    turn, done = Turn(), []

    def change(number: int) -> None:
        with turn:
            done.append(number)
            if number < 3000:
                turn.take(partial(change, number + 1))

    threads = [threading.Thread(target=turn.take, args=[partial(change, start)]) for start in (0, 1000, 2000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(done) == sorted([*range(3001), *range(1000, 3001), *range(2000, 3001)])


def test_a_change_that_fails_after_a_turn_harms_nobody_elses(caplog: pytest.LogCaptureFixture) -> None:
    turn, done = Turn(), []

    def fails() -> None:
        raise ZeroDivisionError

    with turn:
        turn.take(fails)
        turn.take(lambda: done.append(1))
        assert done == []
    assert done == [1]
    assert "ZeroDivisionError" in caplog.text


def test_h11_a_lease_that_ends_while_its_estimator_is_at_work_is_learned_too() -> None:
    """The collector may end a lease in the middle of any line, also of ``Learned``'s own."""
    learned = Learned(lambda info: ending(info))
    told: list[int] = []

    def ending(info: RequestInfo) -> int:
        told.append(1)
        learned.observe(learned.route_of(info), Estimate(100), 300)
        return 100

    def ask() -> None:
        for _ in range(3):
            learned(RequestInfo({"type": "http", "method": "POST", "path": "/x", "headers": []}))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    assert len(told) == 3


def test_h11_a_lease_that_ends_at_any_line_of_the_estimators_own_hangs_nothing() -> None:
    learned = Learned(lambda info: 100)
    asked = RequestInfo({"type": "http", "method": "POST", "path": "/x", "headers": []})
    ended: set[tuple[Any, int]] = set()

    def collect(frame: Any, event: str, arg: Any) -> Any:
        if "estimators" not in frame.f_code.co_filename:
            return None
        place = (frame.f_code, frame.f_lineno)
        if event == "line" and place not in ended:
            ended.add(place)
            learned.observe("/x", Estimate(100), 300)
        return collect

    def ask() -> None:
        sys.settrace(collect)
        for _ in range(3):
            learned(asked)
            learned.observe("/x", Estimate(100), 300)
            learned.restore(learned.to_dict())
        sys.settrace(None)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    assert len(ended) > 40


EXITS = """
import sys
from gpu_admission.observe.decisions import DecisionLog
sys.path.insert(0, ".")
from tests.observe.events import event
log = DecisionLog(sys.argv[1] if len(sys.argv) > 1 else "/dev/null")
class Late:
    def __del__(self):
        log(event("released"))
log(event("released"))
late = Late()
log.late = [late, log]
late.keep = log
import builtins
builtins.kept = late  # ends when the interpreter is taken apart
print("done")
"""


def test_m8_a_lease_that_ends_with_the_interpreter_does_not_keep_it() -> None:
    assert run_program(EXITS) == "done"


def test_h11_a_line_that_the_collector_puts_in_the_middle_of_a_put_is_written(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path / "log")
    with log._file._starting:  # where a put of this very thread was interrupted
        log(event("released"))
    log(event("released"))
    log.close()
    assert len((tmp_path / "log").read_text().splitlines()) == 2


# what may not leak


class BrokenMeter:
    def start(self) -> int:
        raise RuntimeError("no CUDA here")

    def peak(self) -> int:
        return 0


@pytest.mark.anyio
async def test_a_meter_that_can_not_start_costs_neither_an_answer_nor_its_bytes() -> None:
    app = GPUAdmission(echo, capacity=100, estimator=Learned(lambda info: 60, meter=BrokenMeter()))
    for _ in range(3):
        sent = await call(app, scope_of())
        assert sent[0]["status"] == 200
        assert app.admission.in_use == 0


@pytest.mark.anyio
async def test_a_meter_that_leaves_the_program_when_it_starts_keeps_no_bytes() -> None:
    class Leaves(BrokenMeter):
        def start(self) -> int:
            raise SystemExit

    app = GPUAdmission(echo, capacity=100, estimator=Learned(lambda info: 60, meter=Leaves()))
    with pytest.raises(SystemExit):
        await call(app, scope_of())
    assert app.admission.in_use == 0


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["enforce", "shadow"])
async def test_an_observer_that_raises_what_is_no_exception_keeps_no_bytes(mode: Any) -> None:
    def leaves(seen: Event) -> None:
        if seen.kind in ("admitted", "shadow"):
            raise SystemExit

    admission = Admission(capacity=100, estimator=1, observers=[leaves], mode=mode)
    with pytest.raises(SystemExit):
        await admission.entrance.acquire(Estimate(60))
    assert admission.in_use == 0


# what may not promise too much


def test_ready_is_no_while_every_request_is_refused_for_want_of_a_capacity(by_hand: HandClock) -> None:
    card = Card(by_hand, None)
    admission = Admission(devices=[card], estimator=10)
    asyncio.run(admission.startup.begin())
    said = readiness(admission.snapshot())
    assert (said["ready"], said["status"]) == (False, "capacity unknown")
    card.total = 100
    look(admission)
    assert readiness(admission.snapshot())["ready"] is True


def no_gpu(monkeypatch: pytest.MonkeyPatch, card: Card) -> None:
    found = Discovery((card,), "no NVIDIA driver answers; torch is not loaded", has_gpu=False)
    monkeypatch.setattr("gpu_admission.devices.discover", lambda: found)


def test_that_host_memory_stands_in_for_a_gpu_is_a_warning(
    by_hand: HandClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    no_gpu(monkeypatch, Card(by_hand))
    admission = Admission(estimator=10)
    asyncio.run(admission.startup.begin())
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert any(text.startswith("no GPU was found: no NVIDIA driver answers") for text in warned)
    assert admission.snapshot().capacity > 0


def test_require_gpu_admits_nothing_where_none_is_found(
    by_hand: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_gpu(monkeypatch, Card(by_hand))
    app = GPUAdmission(answers(), estimator=10, require_gpu=True)
    with TestClient(app) as client:
        refused = client.post("/")
        assert refused.status_code == 503
        assert "no GPU was found" in refused.json()["detail"]
        assert "require_gpu=True" in refused.json()["detail"]


def answers() -> Starlette:
    async def work(request: Request) -> PlainTextResponse:
        return PlainTextResponse("ok")

    return Starlette(routes=[Route("/", work, methods=["POST"])])


def test_strict_without_a_driver_ends_the_start_of_a_test_client_with_the_reason(by_hand: HandClock) -> None:
    app = GPUAdmission(answers(), devices=[Card(by_hand, None)], estimator=10, strict=True)
    errors: list[BaseException] = []

    def start() -> None:
        try:
            with TestClient(app):
                pass
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=start, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert [type(error) for error in errors] == [ValueError]
    assert "the driver is gone" in str(errors[0])


@pytest.mark.parametrize("forecast", [60, 61, 864_000, 1e300])
def test_at_its_cap_retry_after_is_spread_too(forecast: float) -> None:
    seconds = {retry_after(forecast, 0.0) for _ in range(200)}
    assert max(seconds) <= 60
    assert len(seconds) > 10


def test_the_smallest_request_of_a_picture_model_is_a_small_picture(caplog: pytest.LogCaptureFixture) -> None:
    model = Diffusion("sdxl")
    usual = model.estimate(_asked(width=1024, height=1024)).bytes
    small = model.estimate(_asked(width=8, height=8)).bytes
    with caplog.at_level(logging.WARNING, logger="gpu_admission"):
        admission = Admission(capacity=(usual + small) // 2, estimator=model, strict=True)
        asyncio.run(admission.startup.begin())
    assert "even the smallest request" not in caplog.text


def _asked(**said: Any) -> Any:
    from gpu_admission import Workload

    return Workload(prompt_tokens=1, **said)
