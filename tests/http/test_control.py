"""Control calls pass at once, whatever the budget: N-02, N-03."""

from __future__ import annotations

import re
import time
from typing import Any

import anyio
import httpx
import pytest

from gpu_admission import Admission, GPUAdmission
from gpu_admission.admission.startline import start_line
from gpu_admission.estimators import Constant
from gpu_admission.types import Estimate, Receive, Scope, Send
from gpu_admission.workloads import CONTROL_PATHS
from tests.cases.harness import answer, read_body, settle

pytestmark = pytest.mark.anyio


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    await read_body(receive)
    await answer(send)


def budget(**settings: Any) -> Admission:
    by_tokens = {"estimator": lambda info: min(100, info.workload.new_tokens)}
    return Admission(**{"capacity": 100, "timeout": 0, **by_tokens, **settings})


async def post(admission: Admission, path: str, body: bytes | None = b"") -> int:
    transport = httpx.ASGITransport(GPUAdmission(app, admission=admission))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return (await client.post(path, content=body)).status_code


@pytest.mark.parametrize("pattern", CONTROL_PATHS)
async def test_n_03_a_call_that_steers_the_server_passes_a_full_budget(pattern: str) -> None:
    admission = budget(estimator=Constant(60))
    held = await admission.entrance.acquire(Estimate(100))
    path = pattern.replace("*", "r_1")
    assert await post(admission, path, b'{"model": "m", "prompt": "x"}') == 200
    assert await post(admission, path) == 200
    assert set(admission.snapshot().counts) == {"admitted"}
    held.release()


@pytest.mark.parametrize("path", ["/interrupt", "/free", "/queue", "/v1/responses/r_1/cancel", "/stop/it"])
async def test_n_03_a_request_without_a_body_that_no_dialect_reads_asks_for_nothing(path: str) -> None:
    admission = budget(max_waiting=1, timeout=10)
    held = await admission.entrance.acquire(Estimate(100))
    async with anyio.create_task_group() as group:
        group.start_soon(admission.entrance.acquire, Estimate(100))
        await settle()
        assert await post(admission, path) == 200, "also where the queue is full"
        group.cancel_scope.cancel()
    assert admission.snapshot().counts == {"admitted": 1}
    held.release()


async def test_a_body_that_is_missing_where_a_dialect_reads_one_is_refused_as_ever() -> None:
    assert await post(budget(), "/v1/completions") == 400
    assert await post(budget(routes=["/mine"]), "/mine") == 400, "named word for word"
    assert await post(budget(dialect="openai"), "/mine") == 400
    admission = budget(fallback=40)
    assert (await post(admission, "/mine"), admission.snapshot().counts["admitted"]) == (200, 1)


async def test_what_an_estimator_charges_without_a_body_is_charged() -> None:
    for estimator in (Constant(60), lambda info: 60):
        admission = budget(estimator=estimator)
        assert await post(admission, "/mine") == 200
        held = await admission.entrance.acquire(Estimate(100))
        assert await post(admission, "/mine") == 429
        held.release()


async def test_a_draining_server_refuses_what_costs_something_without_a_body() -> None:
    admission = budget(estimator=lambda info: 60)
    admission.drain()
    assert await post(admission, "/mine") == 503


@pytest.mark.parametrize("how", [{"routes": ["/free", "/x"]}, {"estimator": {"/free": 60}}])
async def test_a_control_path_that_the_settings_name_is_metered(how: dict[str, Any]) -> None:
    admission = budget(**how)
    assert await post(admission, "/free", b'{"prompt": "x", "max_tokens": 5}') == 200
    assert admission.snapshot().counts == {"admitted": 1}
    assert "control=" not in line(admission)


async def test_the_setting_adds_paths_which_the_start_line_names_beside_the_count_of_the_known() -> None:
    admission = budget(control=["/jobs/*/stop"])
    assert await post(admission, "/jobs/7/stop", b'{"max_tokens": 5}') == 200
    assert admission.snapshot().counts == {}
    assert re.search(r" control=\[\d\d known paths, /jobs/\*/stop\]$", line(admission))
    few = budget(routes=["/v1/**"])
    assert re.search(r" control=\[\d known paths\]$", line(few)), "only what would be metered"


async def test_the_log_lists_all_control_paths_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    admission = budget(control=["/jobs/*/stop"])
    with caplog.at_level("DEBUG", "gpu_admission"):
        await admission.entrance.acquire(Estimate(1))
    (told,) = [record for record in caplog.records if "control paths" in record.message]
    assert told.levelname == "DEBUG"
    assert "/interrupt, " in told.message
    assert told.message.endswith(", /jobs/*/stop")


def line(admission: Admission) -> str:
    return start_line(admission.settings, 100, ["device"], admission.metering.control_paths())


async def test_a_client_cannot_make_its_work_a_control_call() -> None:
    admission = budget(estimator=Constant(60))
    held = await admission.entrance.acquire(Estimate(100))
    for path in ("/v1/completions/free", "/x/interrupt", "/freeze", "/interrupt/x", "/v1/completions"):
        assert await post(admission, path, b"{}") == 429, path
    held.release()


async def test_a_stop_call_is_answered_while_a_hundred_wait() -> None:
    """Only that it passes: how fast is benchmarked (``python -m tests.http.test_control``)."""
    await stopped_in()


async def stopped_in() -> float:
    admission = budget(max_waiting=100, timeout=60)
    held = await admission.entrance.acquire(Estimate(100))
    async with anyio.create_task_group() as group:
        for _ in range(100):
            group.start_soon(admission.entrance.acquire, Estimate(100))
        await settle()
        assert admission.waiting == 100
        began = time.perf_counter()
        assert await post(admission, "/interrupt") == 200
        took = time.perf_counter() - began
        assert admission.waiting == 100
        group.cancel_scope.cancel()
    held.release()
    return took


if __name__ == "__main__":
    print([f"{anyio.run(stopped_in) * 1000:.1f} ms" for _ in range(3)])
