"""The scrape of one process, and what is left of dead ones."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from gpu_admission import Admission
from gpu_admission.observe import Metrics, metrics_app
from gpu_admission.observe.families import Families
from gpu_admission.observe.scrape import drop_dead
from gpu_admission.testing import Call, cost, scenario
from tests.cases.harness import settle

LOST = "gpu_admission_leases_lost_total"


def test_a_mounted_scrape_shows_what_is_now() -> None:
    registry = CollectorRegistry()
    admission = Admission(capacity="10GiB", estimator="1GiB", observers=[Metrics(registry=registry)])
    app = Starlette(routes=[Mount("/metrics", metrics_app(registry=registry))])
    admission.resize("20GiB")
    answer = TestClient(app).get("/metrics/")
    assert answer.headers["content-type"].startswith("text/plain")
    assert 'gpu_admission_capacity_bytes{budget="default",device="device"} 2.147483648e+10' in answer.text


GATEWAY = {
    "vllm:num_requests_waiting": 2.0,
    "vllm:num_requests_running": 1.0,
    "vllm:kv_cache_usage_perc": 0.75,
}


@pytest.mark.anyio
async def test_the_names_of_the_inference_gateway_are_there_where_they_are_asked_for() -> None:
    registry = CollectorRegistry()
    async with scenario(
        estimator=cost, capacity=100, max_waiting=9, observers=[Metrics(registry=registry)]
    ) as scene:
        calls = [await scene.start(cost=75) for _ in range(3)]
        plain = Call(metrics_app(registry=registry), method="GET", path="/")
        await plain.run()
        named = Call(metrics_app(registry=registry, inference_gateway=True), method="GET", path="/")
        await named.run()
        for call in calls:
            call.finish()
    assert "vllm:" not in plain.body.decode()
    samples = {
        sample.name: sample.value
        for family in text_string_to_metric_families(named.body.decode())
        for sample in family.samples
    }
    assert {name: samples[name] for name in GATEWAY} == GATEWAY
    assert {name for name in samples if name.startswith("gpu_admission_")}


def test_without_a_registry_it_is_the_default_one() -> None:
    answer = TestClient(Starlette(routes=[Mount("/", metrics_app())])).get("/")
    assert "python_info" in answer.text


@pytest.fixture
def dead(tmp_path: Path) -> int:
    """A process that has ended, and left two open leases of budget ``a`` in the folder."""
    script = (
        "import os; from gpu_admission.observe.families import Families;"
        "from prometheus_client import REGISTRY; families = Families.of(REGISTRY);"
        "families.running.labels('a').set(2); families.capacity.labels('a', 'gpu').set(5);"
        "families.device_total.labels('a', 'gpu').set(7); families.breaker_open.labels('a', 'gpu').set(1);"
        "families.requests.labels('a', '/x', 'default', 'admitted', '').inc(); print(os.getpid())"
    )
    environment = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    return int(subprocess.check_output([sys.executable, "-c", script], env=environment))


def test_what_a_dead_worker_held_is_dropped_and_counted_as_lost_once(dead: int, tmp_path: Path) -> None:
    registry = CollectorRegistry()
    families = Families.of(registry)
    assert len(list(tmp_path.glob("gauge_live*.db"))) == 3
    drop_dead(tmp_path, families)
    drop_dead(tmp_path, families)
    assert registry.get_sample_value(LOST, {"budget": "a"}) == 2
    assert [path.name for path in tmp_path.iterdir()] == [f"counter_{dead}.db"]


def test_of_two_workers_that_find_a_dead_one_at_once_one_counts(
    dead: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = CollectorRegistry()
    rename = Path.rename

    def too_late(path: Path, target: Path) -> Path:
        rename(path, path.with_suffix(".theirs"))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", too_late)
    drop_dead(tmp_path, Families.of(registry))
    assert registry.get_sample_value(LOST, {"budget": "a"}) is None


def test_a_living_worker_keeps_its_files(tmp_path: Path) -> None:
    for pid in (os.getpid(), 1):  # 1 may belong to somebody else: it lives
        (tmp_path / f"gauge_livesum_{pid}.db").touch()
    (tmp_path / "gauge_livesum_x.db").touch()
    drop_dead(tmp_path, Families.of(CollectorRegistry()))
    assert len(list(tmp_path.iterdir())) == 3


def test_a_process_of_another_user_is_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(pid: int, signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", forbidden)
    (tmp_path / "gauge_livesum_5.db").touch()
    drop_dead(tmp_path, Families.of(CollectorRegistry()))
    assert len(list(tmp_path.iterdir())) == 1


def test_a_worker_that_was_killed_and_not_looked_at_is_dead(dead: int, tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie now
    for path in list(tmp_path.glob("gauge_live*.db")):
        path.rename(tmp_path / path.name.replace(str(dead), str(child.pid)))
    registry = CollectorRegistry()
    drop_dead(tmp_path, Families.of(registry))
    child.wait()
    assert registry.get_sample_value(LOST, {"budget": "a"}) == 2


def test_where_the_system_does_not_tell_of_zombies_a_known_process_is_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(path: Path, **options: str) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", unknown)
    (tmp_path / f"gauge_livesum_{os.getpid()}.db").touch()
    drop_dead(tmp_path, Families.of(CollectorRegistry()))
    assert len(list(tmp_path.iterdir())) == 1


def test_with_a_folder_for_several_processes_one_answers_for_all(
    dead: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    app = metrics_app(registry=CollectorRegistry())
    answer = TestClient(Starlette(routes=[Mount("/", app)])).get("/").text
    assert 'gpu_admission_requests_total{budget="a",lane="default",outcome="admitted"' in answer
    assert "gpu_admission_running_requests{" not in answer


@pytest.mark.anyio
async def test_a_worker_that_is_just_making_its_files_fails_no_scrape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    begun = tmp_path / "counter_1.db"
    begun.touch()
    call = Call(metrics_app(registry=CollectorRegistry()), method="GET", path="/")
    async with anyio.create_task_group() as group:
        group.start_soon(call.run)
        await settle()
        assert call.sent == []
        begun.write_bytes(bytes(64))
    assert call.status == 200


@pytest.mark.anyio
async def test_a_file_that_stays_unreadable_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    (tmp_path / "counter_1.db").touch()
    call = Call(metrics_app(registry=CollectorRegistry()), method="GET", path="/")
    await call.run()
    assert isinstance(call.error, struct.error)
