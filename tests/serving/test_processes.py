"""Worker processes: calls run beside each other, come back whole, and are replaced when they die."""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import anyio
import pytest

from gpu_admission import Unavailable
from gpu_admission.serving import ProcessDied, Processes, child
from tests.serving import work
from tests.serving.test_batcher import gather
from tests.waiting import until_async

pytestmark = pytest.mark.anyio


async def test_calls_run_in_n_processes_at_once_with_what_was_loaded() -> None:
    async with Processes(work.where, 2, start=work.load) as processes:
        results = await gather(*[lambda: processes.run(7, pause=0.1)] * 4)
        pids = {pid for pid, _, _ in results}
        assert len(pids) == 2
        assert os.getpid() not in pids
        assert all((number, loaded) == (7, ["loaded"]) for _, number, loaded in results)
    assert not [child for child in multiprocessing.active_children() if child.pid in pids]


async def test_errors_and_odd_results_reach_their_caller_and_the_process_lives_on() -> None:
    async with Processes(work.do, 1) as processes:
        before: Any = await processes.run("where")
        with pytest.raises(ValueError, match="bad") as raised:
            await processes.run("misbehave", "value")
        assert "in misbehave" in raised.value.__notes__[0]
        with pytest.raises(RuntimeError, match="Odd: odd 1 2"):
            await processes.run("misbehave", "odd")
        with pytest.raises(Exception, match="pickle"):
            await processes.run("misbehave", "unpicklable")
        with pytest.raises(Exception, match="pickle"):
            await processes.run("misbehave", lambda: None)
        after: Any = await processes.run("where")
        assert after[0] == before[0]


async def test_a_process_that_dies_is_replaced() -> None:
    async with Processes(work.do, 1) as processes:
        before: Any = await processes.run("where")
        with pytest.raises(ProcessDied, match="exit code 3"):
            await processes.run("die", 3)
        after: Any = await processes.run("where")
        assert after[0] != before[0]


async def test_a_process_that_dies_at_rest_is_replaced_before_the_next_call() -> None:
    async with Processes(work.where, 1) as processes:
        pid, _, _ = await processes.run()
        await until_async(lambda: processes.ready == 1)
        os.kill(pid, signal.SIGKILL)
        await until_async(lambda: pid not in [process.pid for process in multiprocessing.active_children()])
        after, number, _ = await processes.run(7)
        assert (number, after != pid) == (7, True)


async def test_a_cancelled_call_is_killed_and_its_process_replaced(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    async with Processes(work.sleep_and_touch, 1) as processes:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(processes.run, str(mark))
            await until_async(mark.exists)
            tasks.cancel_scope.cancel()
        await until_async(lambda: processes.ready == 1)
    assert mark.read_text() == "begun"


async def test_a_process_that_cannot_start_says_why() -> None:
    with pytest.raises(OSError, match="no such profile"):
        await Processes(work.where, 1, start=work.load_nothing).start()
    with pytest.raises(Unavailable, match="OSError"):
        await Processes(work.where, 1, start=work.load_nothing).run()


async def test_after_aclose_calls_are_refused() -> None:
    processes = Processes(work.where, 1)
    await processes.aclose()
    with pytest.raises(Unavailable, match="aclose"):
        await processes.run()


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"function": lambda: 1}, TypeError, "function must be a function of a module"),
        ({"function": 3}, TypeError, "function must be a callable"),
        ({"start": lambda: 1}, TypeError, "start must be a function of a module"),
        ({"n": 0}, ValueError, "n must be 1 or more"),
    ],
)
def test_wrong_settings_are_refused_by_name(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        Processes(**{"function": work.where, "n": 1, **options})


async def test_a_process_that_dies_within_its_answer_has_died(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Processes(work.do, 1) as processes:
        before: Any = await processes.run("where")
        receive = Connection._recv  # type: ignore[attr-defined]

        def torn(self: Any, size: int) -> Any:
            if size > 10_000_000:  # no pipe takes all of it: the rest has not been sent yet
                os.kill(before[0], signal.SIGKILL)
            return receive(self, size)

        monkeypatch.setattr(Connection, "_recv", torn)
        with pytest.raises(ProcessDied, match="exit code -9"):
            await processes.run("large", 50_000_000)
        monkeypatch.undo()
        after: Any = await processes.run("where")
        assert after[0] != before[0]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
async def test_a_forked_process_keeps_none_of_its_parents_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[BaseProcess] = []
    async with Processes(work.where, 1) as processes:
        pid, _, _ = await processes.run()
        forked = os.fork()
        if not forked:
            signal.pause()
        monkeypatch.setattr(BaseProcess, "kill", killed.append)
        monkeypatch.setattr(child, "GRACE", 5.0)
        try:
            await processes.aclose()
        finally:
            os.kill(forked, signal.SIGKILL)
            os.waitpid(forked, 0)  # noqa: ASYNC222
    assert not killed, "it ended by itself"
    assert not [process for process in multiprocessing.active_children() if process.pid == pid]
