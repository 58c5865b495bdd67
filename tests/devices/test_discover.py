from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

from gpu_admission.devices import HostMemory, discover, nvml_cards
from gpu_admission.devices.cuda_order import NotVisible

from .fake_nvml import FakeDriver, a10, a100, installed


@pytest.fixture(autouse=True)
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "torch")


@pytest.fixture
def driver() -> Iterator[FakeDriver]:
    with installed(FakeDriver(a10(), a10("GPU-b1"))) as fake:
        yield fake


def names(found: Any) -> list[str]:
    return [device.name for device in found.devices]


def test_the_gpus_that_cuda_shows_are_found(driver: FakeDriver) -> None:
    found = discover(env={})
    assert names(found) == ["cuda:0", "cuda:1"]
    assert found.reason == "CUDA shows 2 of 2 NVIDIA GPUs: cuda:0, cuda:1"


def test_hidden_gpus_are_not_found(driver: FakeDriver) -> None:
    found = discover(env={"CUDA_VISIBLE_DEVICES": "1"})
    assert names(found) == ["cuda:0"]
    assert found.devices[0].read().total == a10().total
    assert found.devices[0].key == "GPU-b1"


def test_hiding_all_gpus_means_host_memory(driver: FakeDriver) -> None:
    found = discover(env={"CUDA_VISIBLE_DEVICES": ""})
    assert isinstance(found.devices[0], HostMemory)
    assert found.reason == (
        "CUDA shows 0 of 2 NVIDIA GPUs (CUDA_VISIBLE_DEVICES=''); torch is not loaded: host memory is metered"
    )


def test_cards_of_unknown_order_are_found_by_their_uuids(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> list[str]:
        raise NotVisible("CUDA did not tell its order")

    monkeypatch.setattr(nvml_cards, "ask_child", fail)
    driver.gpus = [a10(), a100()]
    found = discover(env={})
    assert names(found) == [gpu.uuid for gpu in driver.gpus]
    assert found.reason.startswith("CUDA did not tell its order: GPU-")


def test_without_a_driver_the_machine_itself_is_metered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    found = discover()
    assert names(found) == ["host memory"]
    assert found.reason.startswith("no NVIDIA driver answers (")


def torch_with(cuda: int = 0, xpu: int = 0, mps: bool = False) -> Any:
    return types.SimpleNamespace(
        cuda=types.SimpleNamespace(device_count=lambda: cuda, is_initialized=lambda: False),
        xpu=types.SimpleNamespace(device_count=lambda: xpu),
        backends=types.SimpleNamespace(mps=types.SimpleNamespace(is_available=lambda: mps)),
    )


@pytest.mark.parametrize(
    ("torch", "expected"),
    [
        (torch_with(cuda=2), ["cuda:0", "cuda:1"]),
        (torch_with(xpu=1), ["xpu:0"]),
        (torch_with(mps=True), ["mps"]),
        (torch_with(), ["host memory"]),
    ],
)
def test_other_accelerators_are_those_of_a_torch_that_runs(
    monkeypatch: pytest.MonkeyPatch, torch: Any, expected: list[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setitem(sys.modules, "torch", torch)
    found = discover(env={})
    assert names(found) == expected
    assert ("torch shows no accelerator" in found.reason) == (expected == ["host memory"])
