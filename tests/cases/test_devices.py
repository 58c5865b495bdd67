"""What people reported of probes, memory and several GPUs, through real requests.

The driver is NVIDIA's own Python library on a fake one; a card by hand stands in where only
its memory matters.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pynvml  # type: ignore[import-untyped]
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from gpu_admission import Admission, GPUAdmission, current_lease
from gpu_admission.devices import HostMemory, NvmlDevice, nvml_cards, nvml_processes
from gpu_admission.guards import Health, MemoryGuard
from gpu_admission.observe import Metrics, status_app
from gpu_admission.types import DeviceReading, Estimate, Outcome, Receive, Scope, Send
from tests.cards import Card, HandClock, look
from tests.cases.harness import Call, answer, read_body, scenario, settle
from tests.devices.fake_nvml import (
    MIB,
    NOT_SUPPORTED,
    UNKNOWN,
    FakeDriver,
    Gpu,
    a10,
    gb10,
    h100_mig,
    installed,
    rtx4090_wddm,
)

pytestmark = pytest.mark.anyio
GIB = 2**30
Install = Callable[..., FakeDriver]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Install]:
    """A driver with the given cards; nothing depends on the machine that the tests run on."""
    monkeypatch.setattr(nvml_processes, "_sees_all_processes", lambda root: True)
    monkeypatch.setattr(nvml_cards, "WSL_DRIVER", tmp_path / "dxg")
    with installed(FakeDriver()) as fake:

        def fill(*gpus: Gpu) -> FakeDriver:
            fake.gpus = list(gpus)
            return fake

        yield fill


def card(name: int | str = 0, **options: Any) -> NvmlDevice:
    return NvmlDevice(name, **{"env": {}, **options})


async def echo(request: Request) -> Response:
    lease = current_lease()
    return JSONResponse(
        {"device": lease and [lease.device, lease.device_index], "body": len(await request.body())}
    )


def served(admission: Admission, *more: Any) -> TestClient:
    """``/work`` behind the admission, and what may be mounted beside it."""
    routes = [*more, Route("/work", echo, methods=["POST"])]
    return TestClient(GPUAdmission(Starlette(routes=routes), admission=admission))


# readings that are missing


@pytest.mark.parametrize("code", [NOT_SUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION, UNKNOWN])
@pytest.mark.parametrize(
    ("call", "field", "gauge"),
    [
        ("nvmlDeviceGetTemperatureV", "temperature", "device_temperature_celsius"),
        ("nvmlDeviceGetUtilizationRates", "utilization", "device_utilization_ratio"),
        ("nvmlDeviceGetComputeRunningProcesses", "ours", "device_memory_foreign_bytes"),
        ("nvmlDeviceGetTotalEccErrors", None, None),
        ("nvmlDeviceGetRemappedRows", None, None),
        ("nvmlDeviceRegisterEvents", None, None),
        ("nvmlEventSetWait", None, None),
        ("nvmlDeviceGetMigMode", None, None),
        ("nvmlDeviceGetDriverModel", None, None),
        ("nvmlDeviceGetName", None, None),
    ],
)
async def test_bl_67_one_reading_that_is_not_supported_breaks_nothing_and_shows_as_a_gap(
    driver: Install, by_hand: HandClock, call: str, field: str | None, gauge: str | None, code: int
) -> None:
    driver(a10(processes=[(os.getpid(), MIB)], errors={call: code}))
    registry = CollectorRegistry()
    admission = Admission(devices=[card()], estimator="1GiB", observers=[Metrics(registry=registry)])
    pages = Mount("/health", Health(admission)), Mount("/status", status_app(admission, allow=lambda _: True))
    with served(admission, *pages) as client:
        assert client.post("/work").status_code == 200
        assert client.get("/health/ready").json()["ready"] is True
        (shown,) = client.get("/status/", headers={"accept": "application/json"}).json()["devices"]
    (device,) = admission.snapshot().devices
    assert device.reading is not None
    known = {"total", "used", "free", "ours", "temperature", "utilization"}
    assert {name for name in known if getattr(device.reading, name) is None} == ({field} if field else set())
    assert device.capacity > 19 * GIB
    if field is not None:
        assert shown.get({"ours": "foreign"}.get(field, field)) is None
        assert (
            f'gpu_admission_{gauge}{{budget="default",device="{device.name}"}} NaN'
            in generate_latest(registry).decode()
        )


async def test_bl_69_cuda_0_and_1_are_budgets_of_cards_2_and_0(driver: Install, by_hand: HandClock) -> None:
    sizes = [8 * GIB, 16 * GIB, 24 * GIB]
    driver(*(Gpu(b"NVIDIA L4", f"GPU-{n}0", total=size, used=0) for n, size in enumerate(sizes)))
    env = {"CUDA_VISIBLE_DEVICES": "2,0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    devices = [card("cuda:0", env=env), card("cuda:1", env=env), card("cuda:2", env=env)]
    admission = Admission(devices=devices, margin=0, estimator="20GiB")
    with served(admission) as client:
        answered = client.post("/work").json()
    first, second, missing = admission.snapshot().devices
    assert (first.capacity, second.capacity, missing.capacity) == (24 * GIB, 8 * GIB, 0)
    assert "CUDA shows 2 of 3 GPUs" in missing.reason
    assert answered["device"] == ["NVIDIA L4 (cuda:0)", 0]
    assert devices[0].key == "GPU-20"


@pytest.mark.parametrize(
    ("gpu", "name", "capacity"),
    [
        (rtx4090_wddm(), 0, 24564 * MIB // 2 - 1710 * MIB),
        (h100_mig(), "MIG-51ce0000-bbbb", (40448 - 9000) * MIB),
    ],
)
async def test_a_slice_and_a_card_of_windows_get_a_budget_of_what_they_can_give(
    driver: Install, by_hand: HandClock, gpu: Gpu, name: int | str, capacity: int
) -> None:
    driver(gpu)
    admission = Admission(devices=[card(name)], margin=0, estimator="1GiB")
    with served(admission) as client:
        assert client.post("/work").status_code == 200
    assert admission.snapshot().capacity == capacity


async def test_unified_memory_is_budgeted_as_the_hosts(driver: Install, by_hand: HandClock) -> None:
    driver(gb10())
    admission = Admission(
        devices=[card(0, host=Card(by_hand, 128 * GIB, foreign=28 * GIB))], margin=0, estimator=1
    )
    with served(admission) as client:
        assert client.post("/work").status_code == 200
    assert admission.snapshot().capacity == 100 * GIB


# a driver that stops answering


async def test_bl_72_a_driver_that_dies_for_good_leaves_the_static_budget_and_says_so(
    driver: Install, by_hand: HandClock
) -> None:
    fake = driver(a10())
    admission = Admission(devices=[card(clock=by_hand)], estimator="1GiB", timeout=0)
    with served(admission, Mount("/health", Health(admission))) as client:
        for _ in range(10):
            by_hand.pass_(0.5)
            look(admission)
        capacity = admission.snapshot().available
        fake.down = UNKNOWN
        for _ in range(60):
            by_hand.pass_(0.5)
            look(admission)
        assert client.post("/work").status_code == 200
        report = client.get("/health/ready").json()
    (device,) = report["devices"]
    assert (report["ready"], admission.snapshot().available) == (True, capacity)
    assert device["reason"].startswith("no memory reading for 30 s")
    assert device["reason"].endswith("serving on the capacity alone")
    assert (device["reading_age_seconds"], device["total_bytes"]) == (30, 23028 * MIB)
    assert fake.names().count("nvmlInitWithFlags") < 10, "started anew with growing pauses"


async def test_bl_72_three_bad_samples_do_no_harm(driver: Install, by_hand: HandClock) -> None:
    fake = driver(a10())
    admission = Admission(devices=[card(clock=by_hand)], estimator="1GiB", timeout=0)
    with served(admission) as client:
        for down in (0, UNKNOWN, UNKNOWN, UNKNOWN, *[0] * 8):
            fake.down = down
            by_hand.pass_(0.5)
            look(admission)
            assert client.post("/work").status_code == 200
    (device,) = admission.snapshot().devices
    assert (device.ceiling, device.reading_age) == (None, 0)
    assert device.reading is not None
    assert device.reading.error is None


async def test_bl_72_a_driver_that_blocks_blocks_no_request() -> None:
    """The real readings thread, and a look that does not come back while requests are served."""
    go, asked = threading.Event(), threading.Event()

    class Stuck(Card):
        def read(self) -> DeviceReading:
            asked.set()
            go.wait(30)
            return super().read()

    try:
        async with scenario(devices=[Stuck(HandClock())]) as scene:
            await scene.run()
            await anyio.to_thread.run_sync(asked.wait, 30)
            for _ in range(20):
                assert (await scene.run(cost=100)).status == 200
            assert scene.admission.snapshot().devices[0].reading is None
            scene.admission.startup.stop()
    finally:
        go.set()


async def test_who_would_rather_close_without_readings_may(by_hand: HandClock) -> None:
    told = Card(by_hand)
    guard = MemoryGuard(when_stale="close")
    async with scenario(devices=[told], guards=[guard]) as scene:
        look(scene.admission)
        told.total = None
        by_hand.pass_(11)
        look(scene.admission)
        call = await scene.run()
        assert call.problem()["reason"] == "gpu_unavailable"
        assert "closed until there is one" in call.problem()["detail"]
        told.total = 100
        look(scene.admission)


# memory of others, and our own


async def test_bl_78_at_most_what_is_really_free_is_granted_and_the_rest_waits(by_hand: HandClock) -> None:
    gpu = Card(by_hand, 80, foreign=60)
    async with scenario(capacity=60, devices=[gpu], timeout=0) as scene:
        look(scene.admission)
        assert (await scene.run(cost=21)).problem()["reason"] == "queue_timeout"
        assert (await scene.run(cost=20)).status == 200
        gpu.foreign = 5
        look(scene.admission)
        assert (await scene.run(cost=60)).status == 429, "one reading may be noise"
        look(scene.admission)
        assert (await scene.run(cost=60)).status == 200
        gpu.foreign = 75
        look(scene.admission)
        assert (await scene.run(cost=6)).status == 429
        assert (await scene.run(cost=61)).status == 413
        gpu.foreign = 80
        look(scene.admission)
        assert (await scene.run(cost=2)).status == 429, "nothing left at all, and still not too large"
        gpu.foreign = 5
        look(scene.admission, 2)


async def test_bl_78_who_waits_for_others_memory_starts_when_it_is_free(by_hand: HandClock) -> None:
    gpu = Card(by_hand, foreign=70)
    async with scenario(devices=[gpu]) as scene:
        look(scene.admission)
        call = await scene.start(cost=90)
        assert scene.waiting == 1
        gpu.foreign = 0
        look(scene.admission, 2)
        await settle()
        assert call.reached_app
        call.finish()


async def test_bl_79_our_own_memory_is_not_counted_twice(by_hand: HandClock) -> None:
    for facts in ({}, {"cache": 0}, {"facts": {"ours": None}}):
        gpu = Card(by_hand, **facts)
        async with scenario(devices=[gpu], timeout=0) as scene:
            look(scene.admission)
            first = await scene.start(cost=40)
            gpu.filled = 40
            look(scene.admission, 2)
            assert scene.admission.snapshot().available == 60
            second = await scene.start(cost=50)
            assert second.reached_app
            gpu.filled = 90
            look(scene.admission, 2)
            assert scene.admission.snapshot().available == 10
            first.finish()
            second.finish()
            gpu.filled = 0


async def test_bl_79_an_idle_device_with_a_full_allocator_cache_refuses_nobody(
    by_hand: HandClock,
) -> None:
    gpu = Card(by_hand, 1000, resident=300, cache=0)
    async with scenario(capacity=None, margin=0, devices=[gpu], timeout=0) as scene:
        assert (await scene.run(cost=700)).status == 200
        gpu.cache = 700
        for _ in range(5):
            look(scene.admission)
            by_hand.pass_(0.5)
        snapshot = scene.admission.snapshot()
        assert (snapshot.ceiling, snapshot.available, snapshot.devices[0].closed_by) == (700, 700, None)
        assert (await scene.run(cost=700)).status == 200


async def test_before_requests_are_held_back_the_allocators_cache_is_asked_for(
    by_hand: HandClock,
) -> None:
    asked, gpu = threading.Event(), Card(by_hand, 1000, cache=500, foreign=500)
    guard = MemoryGuard(reclaim=asked.set, watermark="5%")
    async with scenario(capacity=500, devices=[gpu], guards=[guard]) as scene:
        look(scene.admission)
        assert not asked.is_set()
        gpu.foreign = 990
        gpu.cache = 10
        look(scene.admission)
        assert await anyio.to_thread.run_sync(asked.wait, 30)
        gpu.foreign = 0
        look(scene.admission, 2)


async def test_bl_80_what_does_not_fit_in_one_piece_lowers_the_ceiling_and_shows(by_hand: HandClock) -> None:
    """Fragmentation can't be measured: a margin is kept for it, and running out of memory adds to it."""
    registry = CollectorRegistry()

    async def fragmented(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)
        raise RuntimeError("CUDA out of memory. Tried to allocate 40 B. 60 B is free")

    gpu = Card(by_hand, 1000)
    metrics = Metrics(registry=registry)
    async with scenario(fragmented, capacity=None, margin=0.2, devices=[gpu], observers=[metrics]) as scene:
        await scene.run(cost=40)
        (device,) = scene.admission.snapshot().devices
        assert (device.capacity, device.ceiling) == (800, 640)
        assert device.closed_by == "out-of-memory"
        text = generate_latest(registry).decode()
        assert 'gpu_admission_ceiling_bytes{budget="default",device="card"} 640.0' in text
        assert 'gpu_admission_limited_by{budget="default",device="card",guard="out-of-memory"} 1.0' in text
        by_hand.pass_(10)
        look(scene.admission)
        assert scene.admission.snapshot().ceiling == 680
        by_hand.pass_(60)
        look(scene.admission)
        assert scene.admission.snapshot().ceiling == 800


# several devices


async def test_bl_86_two_cards_are_two_budgets_and_one_queue(by_hand: HandClock) -> None:
    cards = [Card(by_hand, 24, name="a"), Card(by_hand, 24, name="b")]
    async with scenario(capacity=24, devices=cards, timeout=30.0) as scene:
        too_large = await scene.run(cost=30)
        assert (too_large.status, too_large.problem()["capacity_bytes"]) == (413, 24)
        first, second = await scene.start(cost=20), await scene.start(cost=20)
        assert [where(first), where(second)] == [("a", 0), ("b", 1)]
        first.finish()
        second.finish()
        await settle()
        held = [await scene.start(cost=10), await scene.start(cost=10)]
        three = [await scene.start(cost=10) for _ in range(3)]
        assert [where(call) for call in (*held, *three[:2])] == [("a", 0), ("b", 1), ("a", 0), ("b", 1)]
        assert not three[2].reached_app, "4 + 4 are free, and no request is split"
        assert scene.waiting == 1
        for call in (*held, *three):
            call.finish()


def where(call: Call) -> tuple[str, int]:
    """As the app is told it, by its scope too while the request runs."""
    lease = call.lease
    assert lease is not None
    return lease.device, lease.device_index


@pytest.mark.parametrize(
    ("placement", "devices"),
    [
        ("most_free", [0, 1, 0, 1, 0]),
        ("best_fit", [0, 0, 0, 1, 1]),
        ("round_robin", [0, 1, 0, 1, 0]),
        (lambda size, free, turn: 1 if free[1] >= size else None, [1, 1, 1]),
    ],
)
async def test_where_a_request_goes_is_a_policy(
    by_hand: HandClock, placement: Any, devices: list[int]
) -> None:
    cards = [Card(by_hand, name="a"), Card(by_hand, name="b")]
    async with scenario(devices=cards, placement=placement) as scene:
        calls = [await scene.start(cost=30) for _ in devices]
        assert [where(call)[1] for call in calls] == devices
        for call in calls:
            call.finish()


async def test_the_lease_is_in_the_scope_and_names_its_device(by_hand: HandClock) -> None:
    seen: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        lease = scope["gpu_admission.lease"]
        seen.append((lease.device, lease.device_index))
        await answer(send)

    async with scenario(app, devices=[Card(by_hand, name="a"), Card(by_hand, name="b")]) as scene:
        other = await scene.admission.entrance.acquire(Estimate(60))
        await scene.run(cost=60)
        other.release()
    assert seen == [("b", 1)]


async def test_on_device_makes_the_leases_device_the_current_one_of_this_thread(
    by_hand: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    entered: list[int] = []

    class Current:
        def __init__(self, index: int) -> None:
            self.index = index

        def __enter__(self) -> None:
            entered.append(self.index)

        def __exit__(self, *exc: object) -> None:
            entered.append(-1)

    monkeypatch.setattr(torch.cuda, "device", Current)
    cards = [Card(by_hand, name=f"card {n}", torch_name=f"cuda:{n}") for n in range(2)]
    admission = Admission(capacity=100, devices=cards, estimator=1)
    async with admission.lease(60):
        lease = await admission.entrance.acquire(Estimate(60))
        with lease.on_device():
            assert entered == [1]
        lease.release()
    assert entered == [1, -1]
    async with Admission(capacity=100, estimator=1).lease(1) as nowhere:
        with nowhere.on_device():
            assert entered == [1, -1]


# health


async def test_bl_33_health_answers_whatever_is_full_or_closed(by_hand: HandClock) -> None:
    gpu = Card(by_hand)
    admission = Admission(
        capacity=100, devices=[gpu], estimator=100, max_waiting=1, timeout=30.0, exclude=["/metrics"]
    )

    async def metrics(request: Request) -> Response:
        return Response("ok")

    health = Health(admission)
    routes = [Mount("/health", health), Route("/metrics", metrics, methods=["GET", "POST"])]
    inner = GPUAdmission(
        Starlette(routes=[*routes, Route("/work", echo, methods=["POST"])]), admission=admission
    )
    app = Starlette(routes=[Mount("/api", inner)])

    async def get(path: str, method: str = "GET") -> Call:
        call = Call(app, path=path, method=method)
        await call.run()
        return call

    lease = await admission.entrance.acquire(Estimate(100))
    async with anyio.create_task_group() as group:
        waiting = Call(app, path="/api/work")
        group.start_soon(waiting.run)
        await settle()
        assert (await get("/api/work", "POST")).status == 429
        for path in ("/api/health/live", "/api/health/ready", "/api/metrics"):
            assert (await get(path)).status == 200
        assert (await get("/api/metrics", "POST")).status == 200
        lease.report_oom()
        lease.release()
        await settle()
        for _ in range(2):
            admission.endings.report_outcome(Outcome("oom", 1))
        assert admission.snapshot().closed_by == "out-of-memory"
        await settle()
        assert waiting.status == 503
        live, ready = await get("/api/health/live"), await get("/api/health/ready")
        assert (live.status, ready.status) == (200, 200)
        report = json.loads(ready.body)
        assert (report["closed_by"], report["ready"]) == ("out-of-memory", True)
        assert report["devices"][0]["reason"].startswith("3 requests in a row ran out of memory")
    admission.drain()
    assert ((await get("/api/health/live")).status, (await get("/api/health/ready")).status) == (200, 503)


async def test_host_memory_may_be_metered_like_any_other_device(by_hand: HandClock) -> None:
    admission = Admission(devices=[HostMemory()], capacity="50%", estimator="1MiB")
    with served(admission) as client:
        assert client.post("/work").json()["device"] == ["host memory", 0]
    reading = admission.snapshot().devices[0].reading
    assert reading is not None
    assert 0 < admission.snapshot().capacity < (reading.total or 0) // 2
