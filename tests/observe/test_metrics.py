"""What Prometheus is told: counts, measured values, few series, and nothing twice."""

from __future__ import annotations

import gc
import importlib
import itertools
import logging
import math
import re
import threading
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest

import gpu_admission.observe.families
from gpu_admission import Admission, DeviceReading, Estimate, GPUAdmission, Lane, QueueFull, TooLarge
from gpu_admission.devices import FixedDevice
from gpu_admission.errors import REASONS
from gpu_admission.observe import Metrics
from gpu_admission.observe.families import Families
from gpu_admission.shared.memory import MemoryHub, MemoryLog
from gpu_admission.types import DeviceSnapshot, Message, Receive, Scope, Send
from tests.observe.events import event

GIB = 2**30
OUTSIDE = {"route": "lease", "outcome": "refused"}


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    """A sample, as a scrape would see it."""
    return registry.get_sample_value(f"gpu_admission_{name}", {"budget": "default"} | labels)


def observed(registry: CollectorRegistry, **settings: Any) -> Admission:
    options: dict[str, Any] = {"capacity": "20GiB", "estimator": "1GiB", "timeout": 0}
    return Admission(observers=[Metrics(registry=registry)], **(options | settings))


@pytest.mark.anyio
async def test_a_lease_is_counted_when_it_begins_and_when_it_ends(registry: CollectorRegistry) -> None:
    async with observed(registry).lease("6GiB") as lease:
        lease.record_peak(4 * GIB)
        assert value(registry, "in_use_bytes", device="device") == 6 * GIB
        assert value(registry, "running_requests") == 1
    assert value(registry, "in_use_bytes", device="device") == 0
    counted = {"route": "lease", "lane": "default", "outcome": "admitted", "reason": ""}
    assert value(registry, "requests_total", **counted) == 1
    assert value(registry, "leases_ended_total", lane="default", outcome="ok") == 1
    assert value(registry, "queue_wait_seconds_count", lane="default") == 1
    assert value(registry, "hold_seconds_count", lane="default") == 1
    assert value(registry, "estimate_bytes_sum", lane="default") == 6 * GIB
    assert value(registry, "peak_bytes_sum", lane="default") == 4 * GIB
    assert value(registry, "estimate_to_peak_ratio_sum", lane="default") == 1.5
    assert value(registry, "actual_bytes_total", route="lease") == 4 * GIB
    assert value(registry, "estimated_bytes_total", route="lease") == 6 * GIB


@pytest.mark.anyio
async def test_refusals_are_counted_by_lane_and_reason(registry: CollectorRegistry) -> None:
    admission = observed(registry, lanes=[Lane("short"), Lane("long")], max_waiting=0)
    held = await admission.entrance.acquire(Estimate(15 * GIB))
    with pytest.raises(TooLarge):
        await admission.lease("21GiB", lane="long").__aenter__()
    with pytest.raises(QueueFull):
        await admission.lease("6GiB", lane="short").__aenter__()
    held.release()
    assert value(registry, "requests_total", lane="long", reason="too_large", **OUTSIDE) == 1
    assert value(registry, "requests_total", lane="short", reason="queue_full", **OUTSIDE) == 1


@pytest.mark.anyio
async def test_who_waits_is_shown_by_lane(registry: CollectorRegistry) -> None:
    admission = observed(registry, lanes=[Lane("short"), Lane("long")], timeout=60)
    held = await admission.entrance.acquire(Estimate(15 * GIB))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: admission.entrance.acquire(Estimate(10 * GIB), lane=1))
        await anyio.wait_all_tasks_blocked()
        assert value(registry, "waiting_requests", lane="long") == 1
        assert value(registry, "waiting_bytes", lane="long") == 10 * GIB
        assert value(registry, "waiting_requests", lane="short") == 0
        held.release()
    assert value(registry, "waiting_requests", lane="long") == 0


@pytest.mark.anyio
async def test_the_first_failure_is_an_increase(registry: CollectorRegistry) -> None:
    """A series that begins at 1 has never increased, for Prometheus."""
    admission = observed(registry)
    admission.startup.start()
    for outcome in ("ok", "error", "oom", "fault", "client"):
        assert value(registry, "leases_ended_total", lane="default", outcome=outcome) == 0
    assert value(registry, "leases_lost_total") == 0


@pytest.mark.anyio
async def test_the_first_refusals_of_a_reason_are_an_increase_since_the_first_scrape(
    registry: CollectorRegistry,
) -> None:
    admission = observed(registry)
    for reason in REASONS:
        assert value(registry, "refusals_total", reason=reason) == 0, "before any request has come"
    for _ in range(5):
        with pytest.raises(TooLarge):
            await admission.lease("21GiB").__aenter__()
    assert value(registry, "refusals_total", reason="too_large") == 5
    assert value(registry, "refusals_total", reason="queue_full") == 0


def test_each_reason_of_the_readmes_table_begins_at_zero() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    table = readme.partition("| reason | status |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert set(re.findall(r"`(\w+)`", " ".join(rows))) == set(REASONS)


def test_a_shadow_request_counts_with_what_would_have_become_of_it(registry: CollectorRegistry) -> None:
    admission = observed(registry)
    admission.observers[0](event("shadow", reason="queue_full"))
    counted = {"route": "/generate", "lane": "default", "outcome": "shadow", "reason": "queue_full"}
    assert value(registry, "requests_total", **counted) == 1


def test_a_peak_of_zero_has_no_ratio(registry: CollectorRegistry) -> None:
    admission = observed(registry)
    admission.observers[0](event("released", peak=0))
    admission.observers[0](event("released", peak=50, estimate=None))
    assert value(registry, "peak_bytes_count", lane="default") == 2
    assert value(registry, "estimate_to_peak_ratio_count", lane="default") is None


def measured(admission: Admission, **device: Any) -> None:
    """Make ``admission`` show a device of its own as it would after a reading."""
    snapshot = admission.snapshot()
    known: dict[str, Any] = {
        "name": "gpu",
        "capacity": 100,
        "in_use": 0,
        "ceiling": None,
        "closed_by": None,
        "reason": "",
        "reading": None,
        "reading_age": None,
    }
    shown = msgspec.structs.replace(snapshot, devices=(DeviceSnapshot(**(known | device)),))
    admission.snapshot = lambda: shown  # type: ignore[method-assign]


def test_what_a_reading_does_not_know_is_not_zero(registry: CollectorRegistry) -> None:
    admission = observed(registry)
    measured(admission, reading=DeviceReading(total=100, used=70, ours=50), reading_age=2.0)
    assert value(registry, "device_memory_foreign_bytes", device="gpu") == 20
    temperature = value(registry, "device_temperature_celsius", device="gpu")
    assert temperature is not None
    assert math.isnan(temperature)
    measured(admission, reading=DeviceReading(total=100, used=70))
    foreign = value(registry, "device_memory_foreign_bytes", device="gpu")
    assert foreign is not None
    assert math.isnan(foreign)


@pytest.mark.anyio
async def test_a_device_has_no_series_before_it_is_measured(registry: CollectorRegistry) -> None:
    admission = observed(registry, capacity="50%", devices=[FixedDevice("40GiB", name="gpu")], margin=0)
    assert b'device="' not in generate_latest(registry)
    await admission.startup.begin()
    assert value(registry, "capacity_bytes", device="gpu") == 20 * GIB


def test_a_guard_that_no_longer_sets_the_ceiling_goes_to_zero(registry: CollectorRegistry) -> None:
    admission = observed(registry)
    measured(admission, ceiling=0, closed_by="memory", restart_only=True)
    assert value(registry, "limited_by", device="gpu", guard="memory") == 1
    assert value(registry, "breaker_open", device="gpu") == 1
    assert value(registry, "restart_needed", device="gpu") == 1
    assert value(registry, "ceiling_bytes", device="gpu") == 0
    measured(admission, ceiling=60, closed_by="heat")
    assert value(registry, "limited_by", device="gpu", guard="memory") == 0
    assert value(registry, "limited_by", device="gpu", guard="heat") == 1
    assert value(registry, "breaker_open", device="gpu") == 0
    assert value(registry, "ceiling_bytes", device="gpu") == 60
    measured(admission, name="other")
    assert value(registry, "limited_by", device="other", guard="heat") is None


# built twice


def test_an_app_that_is_built_twice_registers_once_and_shows_the_newer_one(
    registry: CollectorRegistry,
) -> None:
    old = observed(registry, capacity="20GiB")
    new = observed(registry, capacity="30GiB")
    old.observers[0](event("admitted"))
    new.observers[0](event("admitted"))
    counted = {"route": "/generate", "lane": "default", "outcome": "admitted", "reason": ""}
    assert value(registry, "capacity_bytes", device="device") == 30 * GIB
    old_metrics = old.observers[0]
    assert isinstance(old_metrics, Metrics)
    old_metrics.refresh()
    assert value(registry, "capacity_bytes", device="device") == 30 * GIB
    assert value(registry, "requests_total", **counted) == 2


def test_two_budgets_are_told_apart_by_their_names(registry: CollectorRegistry) -> None:
    one = observed(registry, name="one")
    two = observed(registry, name="two", capacity="5GiB")
    assert one.observers != two.observers
    assert value(registry, "capacity_bytes", budget="one", device="device") == 20 * GIB
    assert value(registry, "capacity_bytes", budget="two", device="device") == 5 * GIB


@pytest.mark.parametrize("same", [True, False])
def test_two_budgets_of_one_name_that_are_both_in_use_are_a_warning(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture, same: bool
) -> None:
    one = observed(registry, name="gpu0")
    two = observed(registry, name="gpu0" if same else "gpu1")
    for admission in (one, two):
        admission.startup.start()
    value(registry, "capacity_bytes", budget="gpu0", device="device")
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert any("two budgets in use are called 'gpu0'" in text for text in told) is same


def test_a_budget_that_is_gone_does_not_disturb_a_scrape(registry: CollectorRegistry) -> None:
    admission = observed(registry)
    families = Families.of(registry)
    metrics = Metrics(registry=registry)
    metrics.watch(admission)
    admission.events.observers = ()
    del metrics
    gc.collect()
    assert families.shown("nobody") is None
    assert families.shown("default") is None
    families.refresh()
    assert b"gpu_admission_requests_total" in generate_latest(registry)


def test_a_reloaded_module_finds_the_metrics_again(registry: CollectorRegistry) -> None:
    before = Families.of(registry)
    reloaded = importlib.reload(gpu_admission.observe.families)
    assert reloaded.Families.of(registry) is before


def test_one_metrics_is_for_one_admission(registry: CollectorRegistry) -> None:
    metrics = Metrics(registry=registry)
    Admission(capacity=100, estimator=1, observers=[metrics])
    with pytest.raises(ValueError, match="make another one"):
        Admission(capacity=100, estimator=1, observers=[metrics])


def test_the_default_registry_is_used_where_none_is_named() -> None:
    from prometheus_client import REGISTRY

    assert Metrics().registry is REGISTRY


# few series


async def _answer(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 404, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@pytest.mark.anyio
async def test_ten_thousand_paths_and_odd_methods_leave_at_most_200_series(
    registry: CollectorRegistry,
) -> None:
    sizes = itertools.cycle([GIB, 21 * GIB])
    admission = observed(registry, estimator=lambda info: next(sizes), methods=["POST", "BREW", "GET"])
    app = GPUAdmission(_answer, admission=admission)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        return None

    for number in range(10_000):
        method = ("POST", "GET", "BREW", "X" * (number % 50), "<script>")[number % 5]
        scope = {"type": "http", "method": method, "path": f"/items/{number}", "headers": []}
        await app(scope, receive, send)
    text = generate_latest(registry).decode()
    series = [line for line in text.splitlines() if not line.startswith("#")]
    assert 0 < len(series) <= 200
    assert value(registry, "requests_total", **{**_UNMATCHED, "outcome": "admitted", "reason": ""}) == 3000
    assert "items" not in text
    assert "script" not in text


_UNMATCHED = {"route": "unmatched", "lane": "default"}


def test_ever_new_route_names_share_one_series(registry: CollectorRegistry) -> None:
    admission = observed(registry)
    for number in range(1000):
        admission.observers[0](event("admitted", route=f"/made/up/{number}"))
    text = generate_latest(registry).decode()
    assert text.count("gpu_admission_requests_total{") == 50
    counted = {"route": "other", "lane": "default", "outcome": "admitted", "reason": ""}
    assert value(registry, "requests_total", **counted) == 951


# when it is counted


def test_an_event_is_only_noted_until_somebody_scrapes(registry: CollectorRegistry) -> None:
    """The garbage collector may end a lease while a scrape holds a lock of the client library."""
    admission = observed(registry)
    metrics = admission.observers[0]
    lock = Families.of(registry).running.labels("default")._value._lock
    with lock:
        metrics(event("admitted"))
        metrics(event("released"))
    assert value(registry, "leases_ended_total", lane="default", outcome="ok") == 1


def test_an_event_that_can_not_be_counted_is_logged_and_the_rest_goes_on(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    admission = observed(registry)
    admission.observers[0](event("admitted", bytes="many"))
    with caplog.at_level(logging.ERROR, "gpu_admission"):
        generate_latest(registry)
    assert "1 events could not be counted" in caplog.text
    admission.observers[0](event("released"))
    assert value(registry, "leases_ended_total", lane="default", outcome="ok") == 1


@pytest.mark.anyio
async def test_in_a_process_that_leaves_the_end_of_a_lease_is_counted_at_once() -> None:
    """Not a second later: the process may end by then, and its leases would be lost ones."""
    metrics = Metrics(registry=CollectorRegistry())
    admission = Admission(capacity=100, estimator=10, observers=[metrics])
    hurried = threading.Event()
    metrics._backlog.hurry = hurried.set  # type: ignore[method-assign]
    async with admission.lease(10):
        async with admission.lease(10):
            pass
        assert not hurried.is_set()
        admission.drain()
    assert hurried.is_set()


@pytest.mark.anyio
async def test_closed_an_admission_has_counted_its_leases_without_a_scrape(
    registry: CollectorRegistry,
) -> None:
    async with observed(registry) as admission, admission.lease("6GiB"):
        pass
    ended = Families.of(registry).leases_ended.labels("default", "default", "ok")
    assert ended._value.get() == 1


@pytest.mark.anyio
async def test_whether_a_shared_budget_can_be_reached_is_a_gauge_and_one_of_its_own_has_none(
    registry: CollectorRegistry,
) -> None:
    log = MemoryLog(MemoryHub(knows_deaths=True))
    async with observed(registry, shared=log, name="shared"), observed(registry, name="own"):
        assert value(registry, "shared_budget_away", budget="shared") == 0
        log.cut()
        assert value(registry, "shared_budget_away", budget="shared") == 1
        log.mend()
        assert value(registry, "shared_budget_away", budget="shared") == 0
        assert value(registry, "shared_budget_away", budget="own") is None
