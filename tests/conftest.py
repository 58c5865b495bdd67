"""Fixtures shared by all tests: each async test runs on asyncio and on trio."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from gpu_admission.admission.twins import twins
from gpu_admission.devices import Readings
from tests.cards import HandClock

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
def no_twins() -> None:
    """Budgets that other tests have left alive give out other devices than this one's."""
    twins.cache_clear()


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    """Devices are looked at when the test says so, and time stands still in between."""
    clock = HandClock()
    monkeypatch.setattr("gpu_admission.runtime.clock.monotonic", clock)
    monkeypatch.setattr(Readings, "start", lambda self: None)
    return clock
