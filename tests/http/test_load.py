"""``endpoint-load-metrics``: what balancers are told, as they read it, and only where it is asked for."""

from __future__ import annotations

import math
from typing import Any

import anyio
import pytest
from fastapi import Depends, FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from gpu_admission import Admission, Estimate, GPUAdmission
from gpu_admission.runtime import clock
from gpu_admission.testing import Call, FakeDevice, cost, look, scenario, settle, working
from gpu_admission.types import Receive, Scope, Send

pytestmark = pytest.mark.anyio
HEADER = "endpoint-load-metrics"
FIELDS = {"mem_utilization", "application_utilization", "cpu_utilization", "rps_fractional", "eps"}


def read(value: str) -> dict[str, float]:
    """As Envoy's ``orca_parser.cc``: unknown fields, a name twice, and no finite number are errors."""
    form, _, entries = value.partition(" ")
    assert form == "TEXT"
    report: dict[str, float] = {}
    for entry in entries.split(","):
        name, _, number = entry.strip().partition("=")
        assert name in FIELDS or name.removeprefix("named_metrics.") not in ("", name)
        assert name not in report
        report[name] = float(number)
        assert math.isfinite(report[name])
        assert report[name] >= 0
    assert report["mem_utilization"] <= 1
    return report


def told(call: Call) -> dict[str, float]:
    return read(call.headers[HEADER])


async def test_nothing_is_told_by_default() -> None:
    async with scenario(capacity=100) as scene:
        call = await scene.start(cost=10)
        call.finish()
        await settle()
        assert HEADER not in call.headers


async def test_an_answer_tells_how_full_the_budget_is_and_how_many_wait() -> None:
    async with scenario(capacity=100, load_header=True, timeout=60) as scene:
        first = await scene.start(cost=80)
        waiting = [await scene.start(cost=40) for _ in range(2)]
        first.finish()
        await settle()
        report = told(first)
        assert report["mem_utilization"] == 0.8
        assert report["application_utilization"] == 1.6
        assert report["named_metrics.num_requests_waiting"] == 2
        assert report["named_metrics.num_requests_running"] == 1
        assert report["named_metrics.available_bytes"] == 20
        for call in waiting:
            call.finish()
        await settle()
        assert told(waiting[1])["application_utilization"] == 0.8


@pytest.mark.parametrize("on_reject", ["problem", "openai", lambda info, rejected: Response(status_code=429)])
async def test_a_refusal_tells_it_too_and_counts_as_an_error(on_reject: Any) -> None:
    async with scenario(capacity=100, load_header=True, max_waiting=0, on_reject=on_reject) as scene:
        first = await scene.start(cost=100)
        refused = await scene.start(cost=1)
        assert refused.status == 429
        report = told(refused)
        assert (report["mem_utilization"], report["named_metrics.available_bytes"]) == (1, 0)
        assert report["eps"] == report["rps_fractional"] > 0
        first.finish()


async def test_a_closed_or_drained_budget_is_full() -> None:
    device = FakeDevice("100GiB")
    budget = Admission(
        capacity="100%", margin=0, devices=[device], estimator=cost, load_header=True, timeout=0
    )
    await budget.startup.begin()
    device.foreign = 100 * 2**30
    look(budget)
    refused = Call(GPUAdmission(working, admission=budget), cost=10)
    await refused.run()
    assert told(refused)["mem_utilization"] == 1
    assert told(refused)["application_utilization"] >= 1
    await budget.aclose()

    budget = Admission(capacity=100, estimator=cost, load_header=True)
    budget.drain()
    refused = Call(GPUAdmission(working, admission=budget), cost=10)
    await refused.run()
    assert (refused.status, told(refused)["mem_utilization"]) == (503, 1)


async def test_a_guard_that_lowers_the_ceiling_makes_the_budget_fuller() -> None:
    device = FakeDevice("100GiB")
    budget = Admission(capacity="100%", margin=0, devices=[device], estimator=cost, load_header=True)
    await budget.startup.begin()
    lease = await budget.entrance.acquire(Estimate(30 * 2**30))
    device.foreign = 40 * 2**30
    look(budget)
    assert read(budget.load.header(200))["mem_utilization"] == 0.7
    lease.release()
    await budget.aclose()


async def test_the_report_of_the_app_itself_is_replaced() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse("done", headers={HEADER: "TEXT cpu_utilization=0.5"})(scope, receive, send)

    call = Call(GPUAdmission(app, capacity=100, estimator=10, load_header=True))
    await call.run()
    assert told(call)["mem_utilization"] == 0.1


async def test_a_decorated_route_tells_it() -> None:
    admission = Admission(capacity=100, estimator=10, load_header=True)

    @admission.admit
    async def work(request: Request) -> Response:
        return PlainTextResponse("done")

    call = Call(Starlette(routes=[Route("/work", work, methods=["POST"])]))
    await call.run()
    assert told(call)["mem_utilization"] == 0.1


@pytest.mark.parametrize("path", ["/admitted", "/answers", "/depends"])
async def test_a_route_of_fastapi_tells_it_once(path: str) -> None:
    admission = Admission(capacity=100, estimator=10, load_header=True)
    app = FastAPI()

    @app.post("/admitted")
    @admission.admit
    async def admitted() -> dict[str, int]:
        return {}

    @app.post("/answers")
    @admission.admit
    async def answers() -> Response:
        return PlainTextResponse("done", headers={HEADER: "TEXT cpu_utilization=0.5"})

    @app.post("/depends", dependencies=[Depends(admission.dependency())])
    async def depends() -> dict[str, int]:
        return {}

    call = Call(app, path=path)
    await call.run()
    assert call.status == 200
    assert told(call)["mem_utilization"] == 0.1


async def test_what_is_not_metered_tells_nothing() -> None:
    call = Call(GPUAdmission(working, capacity=100, estimator=10, load_header=True), method="GET")
    async with anyio.create_task_group() as group:
        group.start_soon(call.run)
        await settle()
        call.finish()
    assert HEADER not in call.headers


def test_the_rates_are_those_of_the_last_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    load = Admission(capacity=100, estimator=10).load
    now = 1000.0
    monkeypatch.setattr(clock, "monotonic", lambda: now)
    for n in range(600):  # 20 a second, each fourth of which fails
        now += 0.05
        last = load.header(503 if n % 4 == 0 else 200)
    assert read(last)["rps_fractional"] == pytest.approx(20, rel=0.06)
    assert read(last)["eps"] == pytest.approx(5, rel=0.06)
    now += 60
    assert read(load.header(200))["rps_fractional"] < 0.2
