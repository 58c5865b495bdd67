"""The report: what was done, and whether the policy could ever have fired."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_admission import Admission, Estimate, TooLarge

pytestmark = pytest.mark.anyio


def made(**settings: Any) -> Admission:
    return Admission(**({"capacity": 100, "estimator": 10, "timeout": 0} | settings))


async def run(admission: Admission, *sizes: int) -> None:
    leases = [await admission.entrance.acquire(Estimate(size)) for size in sizes]
    for lease in leases:
        lease.release()


async def test_a_policy_that_never_came_near_says_what_it_would_take() -> None:
    admission = made()
    await run(admission, 10, 20)
    report = admission.report()
    assert report.fired is False
    assert (report.requests, report.admitted, report.peak, report.largest) == (2, 2, 30, 20)
    assert str(report) == (
        "gpu_admission 'default' (mode=enforce): refused 0 of 2; peak 30 B of 100 B.\n"
        "The policy never fired: at the peak 70 B were still free. It can only fire when more than 5 "
        "requests of the largest size seen (20 B) run at once: if the server runs fewer, or the estimates "
        "are too low, it does nothing."
    )


async def test_max_running_is_what_fires_first_where_it_is_lower() -> None:
    admission = made(max_running=3)
    await run(admission, 10)
    assert "more than 3 requests" in admission.report().verdict


async def test_a_full_budget_held_somebody_back_or_was_about_to() -> None:
    admission = made()
    await run(admission, 60, 30)
    report = admission.report()
    assert report.fired is True
    assert "one more of 60 B did not fit at the peak" in report.verdict


async def test_a_refusal_has_fired_and_is_counted_by_reason() -> None:
    admission = made()
    with pytest.raises(TooLarge):
        await admission.lease(101).__aenter__()
    admission.entrance.left()
    report = admission.report()
    assert report.fired is True
    assert (report.requests, report.disconnected, dict(report.refused)) == (2, 1, {"too_large": 1})
    assert "refused 1 of 2 (too_large 1)" in str(report)
    assert report.to_dict()["refused"] == {"too_large": 1}


async def test_without_a_request_it_says_where_to_look() -> None:
    report = made(routes=["/generate"], exclude=["/health"]).report()
    assert report.fired is None
    assert report.verdict == (
        "No metered request has come: check routes=['/generate'], exclude=['/health'], "
        "methods=['PATCH', 'POST', 'PUT']."
    )
    assert "routes=all" in made().report().verdict


async def test_in_mode_off_nothing_can_fire() -> None:
    report = made(mode="off").report()
    assert report.fired is False
    assert report.verdict.startswith("mode='off'")


async def test_in_shadow_mode_it_tells_what_would_have_been() -> None:
    admission = made(mode="shadow", max_waiting=0)
    await run(admission, 60, 60, 101)
    report = admission.report()
    assert dict(report.refused) == {"queue_full": 1, "too_large": 1}
    assert "would have refused 2 of 3" in str(report)
    assert "peak 221 B of 100 B" in str(report)
    assert report.verdict == "The policy would have fired."
