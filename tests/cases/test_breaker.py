"""What people reported of out-of-memory, breakers and broken devices, through real requests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from gpu_admission import Admission, Unavailable, current_lease
from gpu_admission.guards import FaultGuard, Health, MemoryGuard, OutOfMemoryGuard, ThermalGuard
from gpu_admission.guards.fault import EXIT_CODE
from gpu_admission.serving.watchdog import Watchdog
from gpu_admission.types import Estimate, Guard, Outcome, Receive, Scope, Send
from tests.cards import Card, HandClock, look
from tests.cases.harness import Call, Scene, answer, read_body, saying, scenario, settle, until

pytestmark = pytest.mark.anyio
COOL_DOWN = 30.0


def oom() -> Exception:
    return RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB")


async def fated(scope: Scope, receive: Receive, send: Send) -> None:
    """Works until the call may finish, and ends as ``scope["test.fate"]`` says: a status, or an exception."""
    call: Call = scope["call"]
    call.lease = current_lease()
    call.read = await read_body(receive)
    call.started.set()
    await call.may_finish.wait()
    fate: Any = scope.get("test.fate", 200)
    if isinstance(fate, BaseException):
        raise fate
    if fate is None:
        assert call.lease is not None
        call.lease.report_oom()
    await answer(send, b"done", status=fate or 500)


def guarded(clock: HandClock, **settings: Any) -> Any:
    guards = [OutOfMemoryGuard(cool_down=COOL_DOWN, opens_after=3)]
    return scenario(fated, **{"devices": [Card(clock)], "guards": guards, **settings})


async def open_breaker(scene: Scene) -> None:
    look(scene.admission)
    for _ in range(3):
        await scene.run(**saying(fate=oom()))
    assert scene.admission.snapshot().closed_by == "out-of-memory"


async def cooled(scene: Scene, clock: HandClock) -> None:
    """The cool-down is over, and the readings thread has come by."""
    clock.pass_(COOL_DOWN)
    look(scene.admission)


def refused(call: Call) -> dict[str, Any]:
    problem = call.problem()
    assert (call.status, problem["reason"]) == (503, "gpu_unavailable")
    return problem


# recognised


class Wrapped(Exception):
    pass


def wrapped() -> Exception:
    error = Wrapped("generation failed")
    error.__cause__ = oom()
    return error


def torch_oom() -> Exception:
    torch = pytest.importorskip("torch")
    error: Exception = torch.OutOfMemoryError("any text")
    return error


@pytest.mark.parametrize(
    "make",
    [
        torch_oom,
        oom,
        lambda: RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        lambda: RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        lambda: RuntimeError("HIP out of memory. Tried to allocate 1 GiB"),
        lambda: RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"),
        wrapped,
        lambda: ExceptionGroup("tasks", [ValueError(), oom()]),
        MemoryError,
        lambda: None,
    ],
)
async def test_bl_82_every_form_of_out_of_memory_counts_also_one_that_the_app_reports(
    by_hand: HandClock, make: Callable[[], Any]
) -> None:
    fate = make()
    async with guarded(by_hand) as scene:
        look(scene.admission)
        call = await scene.run(**saying(fate=fate))
        assert call.error is fate
        assert scene.admission.snapshot().ceiling == 80
        by_hand.pass_(100)
        look(scene.admission)


@pytest.mark.parametrize(
    "fate",
    [
        ValueError("the prompt says: CUDA out of memory. Tried to allocate"),
        RuntimeError("user asked about 'CUDA out of memory.'"),
        KeyError("RESOURCE_EXHAUSTED"),
        500,
        400,
        200,
    ],
)
async def test_bl_82_what_a_user_wrote_does_not_count(by_hand: HandClock, fate: Any) -> None:
    async with guarded(by_hand) as scene:
        look(scene.admission)
        for _ in range(5):
            await scene.run(**saying(fate=fate))
        look(scene.admission)
        assert scene.admission.snapshot().ceiling == 100


async def test_bl_82_the_classifier_may_be_the_users_own(by_hand: HandClock) -> None:
    class EngineFull(Exception):
        pass

    def classify(error: BaseException) -> Any:
        return "oom" if isinstance(error, EngineFull) else None

    async with guarded(by_hand, classify=classify) as scene:
        look(scene.admission)
        await scene.run(**saying(fate=oom()))
        assert scene.admission.snapshot().ceiling == 100
        await scene.run(**saying(fate=EngineFull()))
        assert scene.admission.snapshot().ceiling == 80
        by_hand.pass_(100)
        look(scene.admission)


# open and half-open


async def test_an_open_breaker_refuses_at_once_and_says_until_when(by_hand: HandClock) -> None:
    async with guarded(by_hand) as scene:
        await open_breaker(scene)
        by_hand.pass_(10)
        call = await scene.run(b"x", headers=[(b"content-length", b"1")])
        assert call.receives == 0, "no body is asked for"
        assert "3 requests in a row ran out of memory" in refused(call)["detail"]
        assert 20 <= int(call.headers["retry-after"]) <= 31
        await cooled(scene, by_hand)
        assert (await scene.run()).status == 200


async def test_who_waits_while_it_opens_is_refused_like_those_who_come_then(by_hand: HandClock) -> None:
    async with guarded(by_hand) as scene:
        look(scene.admission)
        running = [await scene.start(cost=30, **saying(fate=oom())) for _ in range(3)]
        waiting = [await scene.start(cost=100) for _ in range(2)]
        assert scene.waiting == 2
        for call in running:
            call.finish()
        await settle()
        for call in waiting:
            assert call.ended
            assert refused(call)["detail"].startswith("guard 'out-of-memory' lets nothing start")
            assert 30 <= int(call.headers["retry-after"]) <= 45
            assert not call.reached_app
        await cooled(scene, by_hand)
        assert (await scene.run()).status == 200


@pytest.mark.parametrize("trials", [1, 3])
async def test_bl_85_of_a_hundred_at_the_end_of_the_cool_down_the_set_number_passes(
    by_hand: HandClock, trials: int
) -> None:
    guards = [OutOfMemoryGuard(cool_down=COOL_DOWN, opens_after=3, trials=trials)]
    async with guarded(by_hand, guards=guards) as scene:
        await open_breaker(scene)
        await cooled(scene, by_hand)
        crowd = [scene.call() for _ in range(100)]
        for call in crowd:
            scene.group.start_soon(call.run)
        await settle()
        passed = [call for call in crowd if call.reached_app]
        assert len(passed) == trials
        for call in crowd:
            if call not in passed:
                assert f"at most {trials} at a time" in refused(call)["detail"]
                assert 1 <= int(call.headers["retry-after"]) <= 45
        passed[0].finish()
        await settle()
        late = await scene.start()
        assert late.reached_app, "one good trial and it is closed again"
        for call in (*passed[1:], late):
            call.finish()


# each end of a trial


async def trial(scene: Scene, clock: HandClock, **changes: Any) -> Call:
    """The one request that tries the device out."""
    await open_breaker(scene)
    await cooled(scene, clock)
    call = await scene.start(**changes)
    assert call.reached_app
    refused(await scene.run())
    return call


async def check_free_and_recovers(scene: Scene) -> None:
    """The place of the trial is free: one passes, no more, and it closes the breaker."""
    assert scene.admission.snapshot().devices[0].reason.endswith("at most 1 at a time")
    good = await scene.start()
    assert good.reached_app
    refused(await scene.run())
    good.finish()
    await settle()
    assert good.status == 200
    both = [await scene.start(), await scene.start()]
    assert all(call.reached_app for call in both)
    for call in both:
        call.finish()


@pytest.mark.parametrize("how", ["hang up", "cancel"])
async def test_bl_84_a_a_trial_whose_client_leaves_gives_its_place_back(by_hand: HandClock, how: str) -> None:
    async def attentive(scope: Scope, receive: Receive, send: Send) -> None:
        """As apps do that stop working for a client that has gone."""
        call: Call = scope["call"]
        if scope.get("test.leaves"):
            call.lease = current_lease()
            await read_body(receive)
            assert (await receive())["type"] == "http.disconnect"
            return
        await fated(scope, receive, send)

    async with guarded(by_hand) as scene:
        scene.app.app = attentive
        call = await trial(scene, by_hand, **saying(leaves=True))
        call.hang_up() if how == "hang up" else call.cancel()
        await settle()
        assert call.ended
        await check_free_and_recovers(scene)


async def test_bl_84_b_a_trial_that_is_answered_400_neither_closes_nor_extends(
    by_hand: HandClock,
) -> None:
    async with guarded(by_hand) as scene:
        call = await trial(scene, by_hand, **saying(fate=400))
        call.finish()
        await settle()
        assert call.status == 400
        await check_free_and_recovers(scene)


async def test_bl_84_c_a_trial_that_fails_otherwise_gives_its_place_back(by_hand: HandClock) -> None:
    error = LookupError()
    async with guarded(by_hand) as scene:
        call = await trial(scene, by_hand, **saying(fate=error))
        call.finish()
        await settle()
        assert call.error is error
        await check_free_and_recovers(scene)


async def test_bl_84_d_a_trial_that_never_ends_is_taken_for_lost(by_hand: HandClock) -> None:
    async with guarded(by_hand) as scene:
        hanging = await trial(scene, by_hand)
        by_hand.pass_(COOL_DOWN - 1)
        look(scene.admission)
        refused(await scene.run())
        by_hand.pass_(1)
        look(scene.admission)
        good = await scene.run()
        assert good.status == 200, "within one cool-down"
        assert (await scene.run()).status == 200
        hanging.finish()


async def test_bl_84_e_a_trial_that_our_own_queue_refuses_has_taken_no_place(by_hand: HandClock) -> None:
    """It is too large for what is left: it may not wait either, since all who can't start are sent away."""
    async with guarded(by_hand, max_waiting=0) as scene:
        await open_breaker(scene)
        await cooled(scene, by_hand)
        assert scene.admission.snapshot().ceiling < 100
        assert (await scene.run(cost=100)).status in (429, 503)
        assert (await scene.run(cost=101)).status == 413
        await check_free_and_recovers(scene)


async def test_a_trial_that_runs_out_of_memory_opens_it_for_another_cool_down(by_hand: HandClock) -> None:
    async with guarded(by_hand) as scene:
        call = await trial(scene, by_hand, **saying(fate=oom()))
        call.finish()
        await settle()
        by_hand.pass_(COOL_DOWN - 1)
        look(scene.admission)
        refused(await scene.run())
        by_hand.pass_(1)
        look(scene.admission)
        assert (await scene.run()).status == 200


async def test_of_two_devices_the_healthy_one_serves_while_the_other_is_tried_out(by_hand: HandClock) -> None:
    cards = [Card(by_hand, name="a"), Card(by_hand, name="b")]
    guards = [OutOfMemoryGuard(cool_down=COOL_DOWN, opens_after=1)]
    async with guarded(by_hand, devices=cards, guards=guards) as scene:
        look(scene.admission)
        await scene.run(**saying(fate=oom()))
        assert [device.closed_by for device in scene.admission.snapshot().devices] == ["out-of-memory", None]
        calls = [await scene.start(cost=50) for _ in range(3)]
        assert [call.reached_app for call in calls] == [True, True, False], "b serves: it may wait"
        await cooled(scene, by_hand)
        await settle()
        assert calls[2].lease is not None
        assert calls[2].lease.device == "a", "the trial"
        for call in calls:
            call.finish()


# faults


FAULTS = [
    RuntimeError("CUDA error: device-side assert triggered"),
    RuntimeError("CUDA error: an illegal memory access was encountered"),
]


@pytest.mark.parametrize("fate", FAULTS)
async def test_bl_83_a_broken_device_is_closed_until_restart(by_hand: HandClock, fate: Exception) -> None:
    async with scenario(fated, devices=[Card(by_hand)]) as scene:
        app = Starlette(routes=[Mount("/health", Health(scene.admission))])
        with TestClient(app) as probe:
            assert probe.get("/health/ready").status_code == 200
            waiting_for = await scene.start(cost=100, **saying(fate=fate))
            waiting = await scene.start(cost=100)
            waiting_for.finish()
            await settle()
            assert waiting_for.error is fate
            assert not waiting.reached_app
            for later in (0, 60, 10_000):
                by_hand.pass_(later)
                look(scene.admission)
                call = await scene.run()
                assert "a request failed with RuntimeError" in refused(call)["detail"]
            for told in (waiting, call):
                assert "retry-after" not in told.headers
                assert told.headers["x-should-retry"] == "false"
            assert probe.get("/health/live").status_code == 200
            ready = probe.get("/health/ready")
            assert (ready.status_code, ready.json()["status"]) == (503, "restart needed")
            assert ready.json()["devices"][0]["closed_by"] == "fault"
        scene.admission.drain()


async def test_bl_83_a_fault_outlasts_what_would_recover(by_hand: HandClock) -> None:
    """A broken device that also ran out of memory, is hot and shrunk: the refusal names the fault."""
    gpu = Card(by_hand, facts={"temperature": 95.0})
    guards = [MemoryGuard(), OutOfMemoryGuard(opens_after=1), FaultGuard(), ThermalGuard()]
    async with scenario(fated, devices=[gpu], guards=guards) as scene:
        running = [await scene.start(**saying(fate=fate)) for fate in (oom(), FAULTS[0])]
        look(scene.admission)
        for call in running:
            call.finish()
        await settle()
        problem = refused(await scene.run())
        assert problem["detail"].startswith("guard 'fault' lets nothing start")
        scene.admission.drain()


async def test_a_fault_that_the_driver_tells_closes_without_any_request(by_hand: HandClock) -> None:
    gpu = Card(by_hand)
    async with scenario(fated, devices=[gpu]) as scene:
        look(scene.admission)
        gpu.facts["faults"] = ("Xid 79: GPU has fallen off the bus",)
        look(scene.admission)
        assert "Xid 79" in refused(await scene.run())["detail"]
        scene.admission.drain()


async def test_one_broken_device_of_two_is_left_out_and_readiness_stays(by_hand: HandClock) -> None:
    cards = [Card(by_hand, name="a"), Card(by_hand, name="b")]
    async with scenario(fated, devices=cards) as scene:
        look(scene.admission)
        await scene.run(**saying(fate=FAULTS[0]))
        for _ in range(3):
            call = await scene.run(cost=60)
            assert call.lease is not None
            assert call.lease.device == "b"
        snapshot = scene.admission.snapshot()
        assert [device.restart_only for device in snapshot.devices] == [True, False]
        assert snapshot.closed_by is None


EXITING = """
import asyncio, sys
from gpu_admission import Admission, GPUAdmission
from gpu_admission.devices import FixedDevice

async def app(scope, receive, send):
    raise RuntimeError("CUDA error: device-side assert triggered")

async def nothing(message=None):
    return {"type": "http.request", "body": b""}

async def main():
    served = GPUAdmission(app, capacity=100, estimator=1, on_fault="exit")
    scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
    try:
        await served(scope, nothing, nothing)
    except RuntimeError:
        print("the exception came out", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def test_on_fault_exit_ends_the_process_with_a_code_of_its_own() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", EXITING],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert (done.returncode, done.stdout) == (EXIT_CODE, "the exception came out\n"), done.stderr
    assert "exiting with code 86" in done.stderr


async def test_on_fault_may_be_a_callable_that_gets_the_reason(by_hand: HandClock) -> None:
    reasons: list[str] = []
    async with scenario(fated, devices=[Card(by_hand)], on_fault=reasons.append) as scene:
        await scene.run(**saying(fate=FAULTS[0]))
        await until(lambda: bool(reasons))
        scene.admission.drain()
    assert reasons == ["a request failed with RuntimeError"]


# hot


async def test_a_hot_device_shrinks_and_then_closes_and_waiters_are_told(by_hand: HandClock) -> None:
    gpu = Card(by_hand, facts={"temperature": 20.0})
    async with scenario(fated, devices=[gpu], guards=[ThermalGuard(dwell=60)]) as scene:
        look(scene.admission)
        running = await scene.start(cost=60)
        gpu.facts["temperature"] = 82.0
        look(scene.admission)
        assert scene.admission.snapshot().ceiling == 75
        waiting = await scene.start(cost=20)
        assert not waiting.reached_app
        by_hand.pass_(60)
        gpu.facts["temperature"] = 91.0
        look(scene.admission)
        await settle()
        assert "91 °C: stage 3 of 3" in refused(waiting)["detail"]
        assert 30 <= int(waiting.headers["retry-after"]) <= 60, "spread out below the cap"
        running.finish()
        await settle()
        assert running.status == 200, "what runs, runs on"
        by_hand.pass_(60)
        gpu.facts["temperature"] = 40.0
        look(scene.admission)
        assert (await scene.run(cost=100)).status == 200


# a watchdog beside the requests


async def watch_once(admission: Admission, probe: Callable[[], object], device: int = 0) -> None:
    """Let a watchdog run until it has reported once."""
    reported: list[Outcome] = []
    report = admission.endings.report_outcome

    def noting(outcome: Outcome, device: int = 0) -> None:
        report(outcome, device)
        reported.append(outcome)

    admission.endings.report_outcome = noting  # type: ignore[method-assign]
    async with anyio.create_task_group() as group:
        group.start_soon(Watchdog(probe, admission=admission, device=device, every=3600).run)
        await until(lambda: bool(reported))
        group.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("error", "closed_by"),
    [(FAULTS[0], "fault"), (oom(), "out-of-memory"), (ValueError("wrong shape"), None), (None, None)],
)
async def test_a_watchdog_feeds_the_guards_before_any_client_notices(
    by_hand: HandClock, error: Exception | None, closed_by: str | None
) -> None:
    guards: list[Guard] = [OutOfMemoryGuard(opens_after=1), FaultGuard()]
    cards = [Card(by_hand, name="a"), Card(by_hand, name="b")]
    admission = Admission(capacity=100, devices=cards, guards=guards, estimator=1)
    look(admission)

    def probe() -> None:
        if error is not None:
            raise error

    await watch_once(admission, probe, device=1)
    assert [device.closed_by for device in admission.snapshot().devices] == [None, closed_by]
    lease = await admission.entrance.acquire(Estimate(1))
    assert lease.device == "a"
    lease.release()


async def test_a_watchdogs_success_closes_a_half_open_breaker(by_hand: HandClock) -> None:
    async with guarded(by_hand) as scene:
        await open_breaker(scene)
        await cooled(scene, by_hand)
        await watch_once(scene.admission, lambda: None)
        calls = [await scene.start(), await scene.start()]
        assert all(call.reached_app for call in calls)
        for call in calls:
            call.finish()


# whoever asks


async def test_a_lease_at_the_model_call_hears_the_same(by_hand: HandClock) -> None:
    async with guarded(by_hand) as scene:
        await open_breaker(scene)
        with pytest.raises(Unavailable, match="3 requests in a row ran out of memory") as no:
            await scene.admission.lease(1).__aenter__()
        assert (no.value.status_code, no.value.reason) == (503, "gpu_unavailable")
        await cooled(scene, by_hand)
        trial = await scene.admission.entrance.acquire(Estimate(1))
        refused(await scene.run())
        trial.release()
