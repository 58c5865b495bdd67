from __future__ import annotations

import asyncio
import threading
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from gpu_admission.guards import FaultGuard, OutOfMemoryGuard, classify
from gpu_admission.serving.watchdog import Watchdog
from gpu_admission.types import Outcome

pytestmark = pytest.mark.anyio


class Admission:
    """Feeds guards as the real one does, and notes what came."""

    def __init__(self, enough: int = 1) -> None:
        self.guards = (FaultGuard(), OutOfMemoryGuard(opens_after=1))
        self.outcomes: list[Outcome] = []
        self.enough = enough
        self.done = anyio.Event()
        self.endings = self

    def classify(self, error: BaseException) -> tuple[Any, str]:
        return classify(error) or "error", type(error).__name__

    def report_outcome(self, outcome: Outcome, device: int) -> None:
        assert device == 0
        self.outcomes.append(outcome)
        for guard in self.guards:
            guard.ceiling((), [outcome], outcome.at)
        if len(self.outcomes) >= self.enough:
            self.done.set()


async def run(probe: Any, admission: Admission, **options: Any) -> list[str]:
    """Kinds of the outcomes that were reported until there were enough."""
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(Watchdog(probe, admission=admission, **{"every": 0.001, **options}).run)
            await admission.done.wait()
            tasks.cancel_scope.cancel()
    return [outcome.kind for outcome in admission.outcomes]


async def test_a_healthy_probe_is_told_again_and_again() -> None:
    admission = Admission(enough=3)
    threads: set[str] = set()
    assert (await run(lambda: threads.add(threading.current_thread().name), admission))[:3] == ["ok"] * 3
    assert threading.current_thread().name not in threads, "it runs off the event loop"
    assert admission.outcomes[0].at > 0


async def test_an_async_probe_runs_on_the_event_loop() -> None:
    ran: list[str] = []

    async def probe() -> None:
        ran.append(threading.current_thread().name)

    admission = Admission()
    assert (await run(probe, admission))[0] == "ok"
    assert ran[0] == threading.current_thread().name


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("CUDA error: device-side assert triggered"), "fault"),
        (RuntimeError("CUDA out of memory. Tried to allocate"), "oom"),
        (ValueError("wrong shape"), "error"),
    ],
)
async def test_a_failing_probe_feeds_the_same_guards(error: Exception, kind: str) -> None:
    def probe() -> None:
        raise error

    admission = Admission()
    assert (await run(probe, admission))[0] == kind
    assert admission.outcomes[0].error == type(error).__name__
    fault, memory = admission.guards
    assert bool(fault.reason) == (kind == "fault")
    assert (memory.retry_at is not None) == (kind == "oom")


async def test_a_probe_that_hangs_is_an_error_and_then_a_fault_and_takes_one_thread_only() -> None:
    let_go, started = threading.Event(), []

    def probe() -> None:
        started.append(1)
        let_go.wait(30)

    admission = Admission(enough=4)
    try:
        kinds = await run(probe, admission, limit=0.01, hung_after=3)
    finally:
        let_go.set()
    assert kinds[:4] == ["error", "error", "fault", "fault"]
    with anyio.fail_after(30):
        while not started:  # its thread may be slow to start
            await anyio.lowlevel.checkpoint()
    assert started == [1]
    assert admission.outcomes[0].error == "WatchdogTimeout"


async def test_requests_that_have_taken_all_threads_do_not_make_a_probe_late() -> None:
    limiter, let_go = anyio.to_thread.current_default_thread_limiter(), threading.Event()
    async with anyio.create_task_group() as tasks:
        for _ in range(int(limiter.total_tokens)):
            tasks.start_soon(_take_a_thread, let_go)
        try:
            with anyio.fail_after(30):
                while limiter.available_tokens:
                    await anyio.lowlevel.checkpoint()
            assert (await run(lambda: None, Admission(), limit=10))[0] == "ok"
        finally:
            let_go.set()


async def _take_a_thread(let_go: threading.Event) -> None:
    await anyio.to_thread.run_sync(let_go.wait)


async def test_a_probe_may_be_an_object_whose_call_is_a_coroutine() -> None:
    class Probe:
        async def __call__(self) -> None:
            await anyio.lowlevel.checkpoint()
            raise MemoryError

    assert (await run(Probe(), Admission()))[0] == "oom"
    assert (await run(lambda: Probe()(), Admission()))[0] == "oom"


async def test_a_probe_that_comes_back_starts_the_count_anew() -> None:
    slow = iter([True, True, False, True, True, True])

    async def probe() -> None:
        if next(slow, False):
            await anyio.sleep_forever()

    admission = Admission(enough=6)
    kinds = await run(probe, admission, limit=0.01, hung_after=3)
    assert kinds[:6] == ["error", "error", "ok", "error", "error", "fault"]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"probe": 3}, TypeError, "probe must be a callable"),
        ({"every": "1"}, TypeError, "every must be a number"),
        ({"every": 0}, ValueError, "every must be above 0 seconds"),
        ({"limit": float("inf")}, ValueError, "limit must be finite"),
        ({"hung_after": 0}, ValueError, "hung_after must be 1 or more"),
        ({"device": -1}, ValueError, "device must be 0 or more"),
    ],
)
async def test_wrong_settings_are_refused_by_name(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    await anyio.lowlevel.checkpoint()
    with pytest.raises(error, match=text):
        Watchdog(**{"probe": print, "admission": Admission(), **options})


async def test_a_probe_whose_own_work_was_cancelled_has_failed_and_is_run_again() -> None:
    async def probe() -> None:
        raise asyncio.CancelledError

    assert (await run(probe, Admission(enough=2)))[:2] == ["error", "error"]
