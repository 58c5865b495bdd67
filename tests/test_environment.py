"""Settings from the environment: typed, checked, and never silently ignored."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from gpu_admission import Admission
from gpu_admission.settings import from_environment

pytestmark = pytest.mark.anyio


def test_each_variable_is_the_setting_of_its_name() -> None:
    env = {
        "GPU_ADMISSION_TIMEOUT": "2.5",
        "GPU_ADMISSION_CAPACITY": "20GiB",
        "GPU_ADMISSION_MAX_WAITING": "7",
        "GPU_ADMISSION_MODE": "shadow",
        "GPU_ADMISSION_SHARED": "/dev/shm/gpu0",
        "GPU_ADMISSION_NAME": "",
        "GPU_ADMISSION_HELD_DEVICE": "1",
        "PATH": "/bin",
    }
    found = from_environment(env)
    assert found == {
        "timeout": 2.5,
        "capacity": "20GiB",
        "max_waiting": 7,
        "mode": "shadow",
        "shared": "/dev/shm/gpu0",
    }


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("GPU_ADMISSION_TIMEOUT", "soon", "GPU_ADMISSION_TIMEOUT must be a number, got 'soon'"),
        ("GPU_ADMISSION_MAX_WAITING", "1.5", "GPU_ADMISSION_MAX_WAITING must be a whole number, got '1.5'"),
        ("GPU_ADMISSION_TIMEOUT", "-1", "GPU_ADMISSION_TIMEOUT: timeout must be 0 or more"),
        ("GPU_ADMISSION_CAPACITY", "20 apples", "GPU_ADMISSION_CAPACITY: capacity='20 apples' is not a size"),
        ("GPU_ADMISSION_MODE", "on", "GPU_ADMISSION_MODE: mode must be one of 'enforce', 'shadow', 'off'"),
        ("GPU_ADMISSION_TIMOUT", "5", "did you mean GPU_ADMISSION_TIMEOUT"),
        ("GPU_ADMISSION_ESTIMATOR", "5", "no setting that the environment may give"),
    ],
)
def test_a_wrong_one_is_refused_by_its_name(name: str, value: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        from_environment({name: value})


@pytest.fixture
def operator(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("CAPACITY", "2GiB"), ("TIMEOUT", "5"), ("MAX_WAITING", "7"), ("NAME", "gpu7")):
        monkeypatch.setenv(f"GPU_ADMISSION_{name}", value)


@pytest.mark.usefixtures("operator")
async def test_an_admission_takes_what_its_operator_sets_and_keywords_win(
    caplog: pytest.LogCaptureFixture,
) -> None:
    admission = Admission.from_env(estimator="1GiB", timeout=9)
    settings = admission.settings
    assert (settings.capacity, settings.timeout, settings.max_waiting) == (2 * 2**30, 9, 7)
    with caplog.at_level(logging.INFO, "gpu_admission"):
        async with admission:
            pass
    assert "gpu_admission 'gpu7' starts: capacity=2.00 GiB" in caplog.text
    assert caplog.messages[0].endswith(
        "(from GPU_ADMISSION_CAPACITY, GPU_ADMISSION_MAX_WAITING, GPU_ADMISSION_NAME)"
    )


async def test_an_empty_environment_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    admission = Admission.from_env(estimator="1GiB", capacity="2GiB")
    with caplog.at_level(logging.INFO, "gpu_admission"):
        async with admission:
            pass
    assert "(from" not in caplog.text


def test_the_budget_may_be_a_shared_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPU_ADMISSION_SHARED", str(tmp_path / "gpu0"))
    assert Admission.from_env(estimator="1GiB", capacity="2GiB").snapshot().shared


def test_a_mistake_of_the_operator_is_named_at_construction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_ADMISSION_MODE", "shadwo")
    with pytest.raises(ValueError, match="GPU_ADMISSION_MODE"):
        Admission.from_env(estimator="1GiB", mode="off")


@pytest.mark.parametrize("place", ["relative", "redis://host/0"])
def test_one_that_only_the_admission_can_check_is_named_too(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_ADMISSION_SHARED", place)
    with pytest.raises(ValueError, match=r"^GPU_ADMISSION_SHARED: shared="):
        Admission.from_env(capacity=100, estimator=1)
    with pytest.raises(ValueError, match=r"^shared="):
        Admission.from_env(capacity=100, estimator=1, shared="relative")
