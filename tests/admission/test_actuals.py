"""What requests took beside what they were charged: by lease, event, report and refusal."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_admission import Admission, GPUAdmission, Rejected, current_lease
from gpu_admission.admission.actuals import Actuals
from gpu_admission.types import Event, Receive, Scope, Send
from tests.bench.asgi import call, scope_of
from tests.http.test_answer import BODY, PATH, PER_TOKEN, Says, chat_of, learned

SAID = "; requests of this route have taken 50% of their estimate"


async def halves(scope: Scope, receive: Receive, send: Send) -> None:
    lease = current_lease()
    assert lease is not None
    lease.record_peak(lease.bytes // 2)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def half_used() -> GPUAdmission:
    return GPUAdmission(halves, capacity=1000, estimator={"/a": 100, "/b": 100, "/huge": 2000}, routes=["/*"])


async def serve(gate: GPUAdmission, times: int, path: str = "/a") -> None:
    for _ in range(times):
        await call(gate, scope_of(path), b"{}")


@pytest.mark.anyio
async def test_an_answer_tells_what_its_request_took_by_the_tokens_that_it_used() -> None:
    events: list[Event] = []
    admission = Admission(capacity="1GiB", estimator=learned(), observers=[events.append])
    await call(
        GPUAdmission(Says("json", chat_of(200, prompt=100)), admission=admission), scope_of(PATH), BODY
    )
    last = events[-1]
    assert (last.kind, last.peak, last.actual) == ("released", None, 300 * PER_TOKEN)
    assert last.estimate is not None
    assert last.estimate.bytes > 4196 * PER_TOKEN


@pytest.mark.anyio
async def test_what_the_app_records_counts_before_what_the_answer_says() -> None:
    events: list[Event] = []
    says = Says("json", chat_of(200))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        lease = current_lease()
        assert lease is not None
        lease.record_peak(12_345)
        await says(scope, receive, send)

    await call(
        GPUAdmission(app, capacity="1GiB", estimator=learned(), observers=[events.append]),
        scope_of(PATH),
        BODY,
    )
    assert events[-1].actual == 12_345


@pytest.mark.anyio
async def test_an_answer_that_says_nothing_leaves_it_unknown() -> None:
    events: list[Event] = []
    gate = GPUAdmission(Says("json", b"{}"), capacity="1GiB", estimator=learned(), observers=[events.append])
    await call(gate, scope_of(PATH), BODY)
    assert events[-1].actual is None
    assert gate.admission.report().actual == ()


@pytest.mark.anyio
async def test_a_formula_that_fails_on_what_was_used_harms_no_request() -> None:
    events: list[Event] = []
    estimator = learned()
    gate = GPUAdmission(
        Says("json", chat_of(200)), capacity="1GiB", estimator=estimator, observers=[events.append]
    )
    estimate = estimator.inner.estimate  # type: ignore[attr-defined]

    def sometimes(workload: Any) -> Any:
        if workload.new_tokens == 200:
            raise ValueError("no formula for that")
        return estimate(workload)

    estimator.inner.estimate = sometimes  # type: ignore[attr-defined]
    response = await call(gate, scope_of(PATH), BODY)
    assert response is not None
    assert (events[-1].kind, events[-1].actual) == ("released", None)
    assert gate.admission.in_use == 0


@pytest.mark.anyio
async def test_the_report_says_what_requests_of_a_route_took() -> None:
    gate = half_used()
    await serve(gate, 25)
    report = gate.admission.report()
    assert report.actual == ("actual /a: 50% of the estimate, by the last 25 known",)
    assert report.actual[0] in str(report)


@pytest.mark.anyio
async def test_a_refusal_says_what_requests_of_its_route_have_taken_and_of_no_other() -> None:
    gate = half_used()
    await serve(gate, 19)
    entrance = gate.admission.entrance

    def refused(route: str, needed: int | None = 5000) -> str:
        rejected = Rejected("queue_timeout", "too late", needed=needed)
        rejected.status = 429
        entrance.refused(rejected, route=route)
        return rejected.detail

    assert refused("/a") == "too late"
    await serve(gate, 1)
    assert refused("/a") == "too late" + SAID
    assert refused("/b") == "too late"
    assert refused("/a", None) == "too late", "before it is estimated, its size is not the reason"


@pytest.mark.anyio
async def test_what_was_cut_short_does_not_count() -> None:
    async def fails(scope: Scope, receive: Receive, send: Send) -> None:
        lease = current_lease()
        assert lease is not None
        lease.record_peak(1)
        raise ValueError("half way")

    gate = GPUAdmission(fails, capacity=1000, estimator={"/a": 100})
    for _ in range(30):
        with pytest.raises(ValueError, match="half way"):
            await call(gate, scope_of("/a"), b"{}")
    assert gate.admission.report().actual == ()


def test_a_route_follows_what_changes() -> None:
    actuals = Actuals()
    for _ in range(3000):
        actuals.note("/a", 100, 100)
    for _ in range(5000):
        actuals.note("/a", 100, 20)
    known = actuals.of("/a")
    assert known is not None
    assert 0.2 <= known.share < 0.25
    assert known.requests <= 1024


def test_ever_new_routes_take_no_more_room() -> None:
    actuals = Actuals()
    for number in range(10_000):
        for _ in range(20):
            actuals.note(f"/{number}", 100, 50)
    assert len(actuals.all()) == 64
