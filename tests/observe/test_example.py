"""The observability example with the real programs: Prometheus scrapes it, its rules and dashboard hold."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.observe.programs import program
from tests.waiting import free_port, wait_for

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[2] / "examples" / "observability"
METRIC = re.compile(r"gpu_admission_[a-z_]+")


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text(encoding="utf-8"))
    return loaded


def expressions() -> list[str]:
    """What the panels of the dashboard ask, with Grafana's variables filled in as Grafana does."""
    asked = [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]
    return [text.replace("$budget", ".+").replace("$__rate_interval", "1m") for text in asked]


def test_every_rule_fires_on_its_trouble_and_on_nothing_else() -> None:
    command = [program("promtool"), "test", "rules", "alerts_test.yml"]
    tested = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stdout + tested.stderr
    rules = re.findall(r"alert: (\w+)", (FOLDER / "alerts.yml").read_text(encoding="utf-8"))
    tests = (FOLDER / "alerts_test.yml").read_text(encoding="utf-8")
    for rule in rules:
        assert re.search(rf"alertname: {rule}\n +exp_alerts", tests), f"{rule} is never seen to fire"


def test_the_configuration_is_one() -> None:
    command = [program("promtool"), "check", "config", "prometheus.yml"]
    checked = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_dashboard_lays_its_panels_out_without_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not taken & cells
        taken |= cells


class Running:
    """The example behind uvicorn, and a Prometheus that scrapes it every second."""

    def __init__(self, app_port: int, prometheus_port: int) -> None:
        self.app_port = app_port
        self.prometheus_port = prometheus_port

    def generate(self, mib: int, seconds: float) -> int:
        asked = {"mib": mib, "seconds": seconds}
        return httpx.post(f"http://127.0.0.1:{self.app_port}/generate", json=asked, timeout=30).status_code

    def get(self, path: str, **query: str) -> Any:
        answer = httpx.get(f"http://127.0.0.1:{self.prometheus_port}/api/v1/{path}", params=query, timeout=30)
        assert answer.json()["status"] == "success", answer.text
        return answer.json()["data"]

    def ask(self, expression: str) -> list[Any]:
        """The result of a query."""
        result: list[Any] = self.get("query", query=expression)["result"]
        return result

    def until(self, expression: str, limit: float = 60) -> None:
        """Wait until a query has a result."""
        began, pause = time.monotonic(), threading.Event()
        while not self.ask(expression):
            assert time.monotonic() - began < limit, f"{expression} has no result"
            pause.wait(0.2)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    prometheus = program("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    app_port, prometheus_port = free_port(), free_port()
    config = (FOLDER / "prometheus.yml").read_text(encoding="utf-8")
    config = config.replace("127.0.0.1:8000", f"127.0.0.1:{app_port}").replace("interval: 5s", "interval: 1s")
    (folder / "prometheus.yml").write_text(config, encoding="utf-8")
    (folder / "alerts.yml").write_bytes((FOLDER / "alerts.yml").read_bytes())
    environment = {name: value for name, value in os.environ.items() if name != "PROMETHEUS_MULTIPROC_DIR"}
    served = [sys.executable, "-m", "uvicorn", "app:app", f"--port={app_port}", "--log-level=warning"]
    scraper = [prometheus, "--config.file=prometheus.yml", f"--storage.tsdb.path={folder / 'data'}"]
    scraper += [f"--web.listen-address=127.0.0.1:{prometheus_port}", "--log.level=error"]
    with (
        subprocess.Popen(served, cwd=FOLDER, env=environment) as app,
        subprocess.Popen(scraper, cwd=folder, stderr=subprocess.DEVNULL) as watcher,
    ):
        try:
            wait_for(app_port, 60)
            wait_for(prometheus_port, 60)
            yield Running(app_port, prometheus_port)
        finally:
            watcher.terminate()
            app.terminate()


def test_prometheus_scrapes_the_example_and_the_dashboard_has_data(running: Running) -> None:
    assert running.generate(500, 0.1) == 200
    assert running.generate(5000, 0.1) == 413
    assert running.generate(500, 1.1) == 200
    running.until('gpu_admission_requests_total{outcome="refused", reason="too_large"} == 1')
    running.until('gpu_admission_leases_ended_total{outcome="ok", lane="long"} == 1')
    assert {target["health"] for target in running.get("targets")["activeTargets"]} == {"up"}
    known = set(running.get("label/__name__/values"))
    told = running.get("targets/metadata")
    families = {entry["metric"] for entry in told}
    for expression in expressions():
        running.ask(expression)  # it is valid
        for name in METRIC.findall(expression):
            family = re.sub(r"_(bucket|sum|count|total)$", "", name)
            assert name in known or family in families or name in families, name


def test_the_rules_are_loaded_and_healthy(running: Running) -> None:
    running.until("up == 1")
    (group,) = running.get("rules")["groups"]
    assert {rule["health"] for rule in group["rules"]} <= {"ok", "unknown"}
    assert {rule["state"] for rule in group["rules"]} == {"inactive"}


def test_every_metric_is_shown_or_alerted_on() -> None:
    """A metric that nobody looks at is one too many."""
    from prometheus_client import CollectorRegistry

    from gpu_admission.observe.families import Families

    registry = CollectorRegistry()
    Families.of(registry)
    text = " ".join(expressions()) + (FOLDER / "alerts.yml").read_text(encoding="utf-8")
    unseen = [family.name for family in registry.collect() if family.name not in text]
    assert unseen == []


def test_the_example_shows_its_page_here_and_guards_it_with_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_STATUS_TOKEN", "a-token-of-enough-characters")
    monkeypatch.syspath_prepend(str(FOLDER))
    from starlette.testclient import TestClient

    app = importlib.import_module("app")
    client = TestClient(app.app)
    assert client.get("/gpu/").status_code == 401
    shown = client.get("/gpu/", headers={"authorization": "Bearer a-token-of-enough-characters"})
    assert shown.json()["capacity"] == 4 * 2**30
    assert "gpu_admission_capacity_bytes" in client.get("/metrics/").text
    del sys.modules["app"]
