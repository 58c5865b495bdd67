from __future__ import annotations

import json
from typing import Any

import anyio
import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from gpu_admission.guards import Health
from gpu_admission.types import DeviceReading, DeviceSnapshot, Snapshot

pytestmark = pytest.mark.anyio


def device(**changes: Any) -> DeviceSnapshot:
    facts: dict[str, Any] = {
        "name": "NVIDIA A10 (cuda:0)",
        "capacity": 100,
        "in_use": 30,
        "ceiling": None,
        "closed_by": None,
        "reason": "",
        "reading": DeviceReading(total=120, used=50, temperature=61.0, faults=("Xid 79",)),
        "reading_age": 0.4,
    }
    return DeviceSnapshot(**{**facts, **changes})


class Admission:
    def __init__(self, *devices: DeviceSnapshot, **changes: Any) -> None:
        facts: dict[str, Any] = dict.fromkeys(("available", "running", "waiting", "waiting_bytes"), 0)
        facts |= dict.fromkeys(("buffered_bytes", "peak", "ceiling"), 0)
        facts |= {"capacity": 100, "in_use": 30, "closed_by": None, "draining": False, "mode": "enforce"}
        facts |= {"forecast": None, "lanes": (), "devices": devices, "counts": {}, **changes}
        self._snapshot = Snapshot(**facts)

    def snapshot(self) -> Snapshot:
        return self._snapshot


async def get(admission: Admission, path: str, method: str = "GET") -> httpx.Response:
    app = Starlette(routes=[Mount("/health", Health(admission))])
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.request(method, path)


async def test_live_says_only_that_the_process_answers() -> None:
    broken = device(restart_only=True, closed_by="fault", ceiling=0)
    answer = await get(Admission(broken, draining=True), "/health/live")
    assert (answer.status_code, answer.json()) == (200, {"status": "live"})
    assert answer.headers["cache-control"] == "no-store"


async def test_ready_tells_readings_ceilings_and_who_lowered_them() -> None:
    hot = device(ceiling=50, closed_by="thermal", reason="86 °C: stage 2 of 3, from 85 °C")
    answer = await get(Admission(hot, ceiling=50, closed_by="thermal", last_success=2.5), "/health/ready")
    assert answer.status_code == 200
    report = answer.json()
    assert report["ready"] is True
    assert (report["ceiling_bytes"], report["last_success_seconds"]) == (50, 2.5)
    (told,) = report["devices"]
    for each in (report, told):
        assert (each["closed_by"], each["lowered_by"]) == (None, "thermal"), "it is open for half"
    assert told["reason"] == "86 °C: stage 2 of 3, from 85 °C"
    assert (told["total_bytes"], told["used_bytes"], told["ours_bytes"]) == (120, 50, None)
    assert (told["temperature_celsius"], told["reading_age_seconds"], told["faults"]) == (
        61.0,
        0.4,
        ["Xid 79"],
    )


async def test_a_busy_closed_or_unread_device_stays_ready() -> None:
    closed = device(ceiling=0, closed_by="out-of-memory", reading=None, reading_age=None)
    answer = await get(Admission(closed, waiting=100, closed_by="out-of-memory"), "/health/ready")
    assert answer.status_code == 200
    report = answer.json()
    for each in (report, report["devices"][0]):
        assert (each["closed_by"], each["lowered_by"]) == ("out-of-memory", None)
    assert report["devices"][0]["total_bytes"] is None


@pytest.mark.parametrize(
    ("admission", "status"),
    [
        (Admission(device(), draining=True), "draining"),
        (Admission(device(restart_only=True)), "restart needed"),
        (Admission(device(), draining=True, settles=4.0), "draining"),
        (Admission(device(restart_only=True), device(restart_only=True)), "restart needed"),
    ],
)
async def test_ready_fails_for_what_a_restart_or_a_drain_would_mend(
    admission: Admission, status: str
) -> None:
    answer = await get(admission, "/health/ready")
    assert answer.status_code == 503
    assert (answer.json()["ready"], answer.json()["status"]) == (False, status)


async def test_a_process_that_takes_its_leave_is_not_ready_and_nothing_has_closed_it() -> None:
    leaving = Admission(device(), draining=True, ceiling=50, closed_by="thermal")
    report = (await get(leaving, "/health/ready")).json()
    assert (report["status"], report["closed_by"], report["lowered_by"]) == ("draining", None, "thermal")


async def test_ready_fails_until_a_shared_budget_that_began_anew_grants() -> None:
    answer = await get(Admission(device(), settles=7.5), "/health/ready")
    assert answer.status_code == 503
    assert (answer.json()["status"], answer.json()["settles_seconds"]) == ("shared budget begins anew", 7.5)


async def test_ready_fails_in_a_process_that_never_reached_its_budget_and_tells_why_it_is_away() -> None:
    began = await get(Admission(device(), away="no Redis", cut_off=True), "/health/ready")
    assert (began.status_code, began.json()["status"]) == (503, "shared budget unreachable")
    took_part = await get(Admission(device(), away="no Redis"), "/health/ready")
    assert (took_part.status_code, took_part.json()["status"]) == (200, "ready")
    assert began.json()["away"] == took_part.json()["away"] == "no Redis"


async def test_one_broken_card_of_two_leaves_the_service_ready() -> None:
    answer = await get(Admission(device(restart_only=True), device()), "/health/ready")
    assert answer.status_code == 200
    assert [told["restart_needed"] for told in answer.json()["devices"]] == [True, False]


async def test_an_admission_without_devices_is_ready() -> None:
    assert (await get(Admission(), "/health/ready")).status_code == 200


async def test_head_has_no_body_and_other_paths_are_not_there() -> None:
    head = await get(Admission(device(restart_only=True)), "/health/ready", "HEAD")
    assert (head.status_code, head.content) == (503, b"")
    assert (await get(Admission(), "/health/other")).status_code == 404
    assert (await get(Admission(), "/health/live", "POST")).status_code == 405


async def test_names_that_are_no_plain_text_stay_valid_json() -> None:
    answer = await get(Admission(device(name="\ufffd\ufffd")), "/health/ready")
    assert json.loads(answer.content)["devices"][0]["name"] == "\ufffd\ufffd"
    await anyio.lowlevel.checkpoint()
