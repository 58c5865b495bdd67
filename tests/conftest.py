"""Fixtures shared by all tests: each async test runs on asyncio and on trio."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from gpu_admission.admission.twins import twins
from gpu_admission.devices import Readings
from tests.cards import HandClock
from tests.waiting import until

# How fast a machine is says nothing about the code.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


@pytest.fixture(
    params=[
        pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
        pytest.param(("trio", {}), id="trio"),
    ]
)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, object]]:
    backend: tuple[str, dict[str, object]] = request.param
    return backend


@pytest.fixture(autouse=True)
def no_twins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Budgets of other tests, which run beside this one or are still alive, give out other devices."""
    twins.cache_clear()
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setattr("gpu_admission.runtime.claims._folder", lambda: Path(folder))
        yield
    twins().drop()


@pytest.fixture(autouse=True)
def no_member_left() -> Iterator[None]:
    """A process that stays in a shared budget beats on, looks for a server, and logs in other tests."""
    before = _members()
    yield
    until(lambda: _members() <= before, what="close what shares a budget, and end its leases")


def _members() -> set[threading.Thread]:
    """Threads by which this process takes part in a shared budget."""
    return {
        each for each in threading.enumerate() if each.name in ("gpu_admission.shared", "gpu_admission.redis")
    }


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    """Devices are looked at when the test says so, and time stands still in between."""
    clock = HandClock()
    monkeypatch.setattr("gpu_admission.runtime.clock.monotonic", clock)
    monkeypatch.setattr(Readings, "start", lambda self: None)
    return clock
