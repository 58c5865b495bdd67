from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from gpu_admission.devices import FixedDevice, TorchDevice, empty_cache, on_device
from gpu_admission.devices import torch as torch_devices

torch = pytest.importorskip("torch")
GIB = 2**30


class Backend:
    """``torch.cuda`` or ``torch.xpu`` of a process with two devices, the first of them in use."""

    def __init__(self, kind: str = "cuda") -> None:
        self.kind = kind
        self.asked: list[str] = []
        self.stats = {0: (10 * GIB, 7 * GIB), 1: (0, 0)}
        self.current = 0

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 2

    def get_device_properties(self, index: int) -> Any:
        uuid = f"{index}0000000-0000-4000-8000-000000000000" if self.kind == "cuda" else None
        return types.SimpleNamespace(name="AMD Instinct", total_memory=64 * GIB, uuid=uuid)

    def memory_stats_as_nested_dict(self, index: int) -> dict[str, Any]:
        reserved, active = self.stats[index]
        if not reserved:
            return {}
        return {
            "reserved_bytes": {"all": {"current": reserved}},
            "active_bytes": {"all": {"current": active}},
        }

    def mem_get_info(self, index: int) -> tuple[int, int]:
        self.asked.append(f"free of {index}")
        return 50 * GIB, 64 * GIB

    def temperature(self, index: int) -> int:
        return 61

    def utilization(self, index: int) -> int:
        raise ModuleNotFoundError("amdsmi")

    def empty_cache(self) -> None:
        self.asked.append("empty")

    def synchronize(self) -> None:
        self.asked.append("synchronize")


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Backend]:
    def install(kind: str = "cuda", hip: str | None = None) -> Backend:
        fake = Backend(kind)
        monkeypatch.setattr(torch, kind, fake)
        monkeypatch.setattr(torch.version, "hip", hip)
        return fake

    return install


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
def test_a_device_in_use_tells_the_whole_device_and_our_allocator(
    backend: Callable[..., Backend], kind: str
) -> None:
    backend(kind)
    device = TorchDevice(f"{kind}:0", clock=lambda: 5.0)
    reading = device.read()
    assert (reading.total, reading.free, reading.used) == (64 * GIB, 50 * GIB, 14 * GIB)
    assert (reading.reserved, reading.allocated) == (10 * GIB, 7 * GIB)
    assert (reading.ours, reading.temperature, reading.taken_at, reading.error) == (None, None, 5.0, None)
    assert device.name == f"AMD Instinct ({kind}:0)"
    assert device.key == ("GPU-00000000-0000-4000-8000-000000000000" if kind == "cuda" else "xpu:0")


def test_a_device_that_we_do_not_use_is_not_given_a_context(backend: Callable[..., Backend]) -> None:
    fake = backend()
    reading = TorchDevice("cuda:1").read()
    assert (reading.total, reading.free, reading.reserved) == (64 * GIB, None, 0)
    assert reading.error is not None
    assert "its free memory is not asked" in reading.error
    assert fake.asked == []


def test_rocm_tells_its_temperature_and_lacks_what_its_library_lacks(
    backend: Callable[..., Backend],
) -> None:
    backend(hip="6.2")
    reading = TorchDevice("cuda:0").read()
    assert (reading.temperature, reading.utilization) == (61.0, None)


def test_a_device_that_torch_does_not_show_is_a_clear_error(backend: Callable[..., Backend]) -> None:
    backend()
    error = TorchDevice("cuda:7").read().error
    assert error == "torch has no cuda:7: it shows 2 devices" or "there is no cuda:7" in str(error)


def test_a_poisoned_context_is_an_error_in_the_reading(
    backend: Callable[..., Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(index: int) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(backend(), "mem_get_info", fail)
    reading = TorchDevice("cuda:0").read()
    assert reading.total is None
    assert reading.error == "torch: RuntimeError: CUDA error: device-side assert triggered"


def test_metal_tells_this_processes_share_of_the_unified_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = types.SimpleNamespace(
        recommended_max_memory=lambda: 48 * GIB,
        driver_allocated_memory=lambda: 8 * GIB,
        current_allocated_memory=lambda: 5 * GIB,
    )
    monkeypatch.setattr(torch, "mps", fake)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    reading = TorchDevice("mps").read()
    assert (reading.total, reading.used, reading.free) == (48 * GIB, 8 * GIB, 40 * GIB)
    assert (reading.ours, reading.reserved, reading.allocated) == (8 * GIB, 8 * GIB, 5 * GIB)


def test_the_real_torch_on_cpu_is_not_initialised_by_a_reading() -> None:
    if torch.cuda.is_available():
        pytest.skip("this torch has CUDA")
    for name, error in (
        ("cuda:0", "torch has not initialised cuda in this process"),
        ("xpu:0", "torch has not initialised xpu in this process"),
        ("mps", "torch has not initialised mps in this process"),
    ):
        reading = TorchDevice(name).read()
        assert (reading.total, reading.error) == (None, error)
    assert not torch.cuda.is_initialized()
    assert torch_devices.cuda_allocator(0) is None
    assert torch_devices.cuda_uuids() is None
    empty_cache()


def test_a_process_without_torch_does_not_load_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    assert TorchDevice("cuda:0").read().error == "torch is not loaded in this process"
    empty_cache()
    assert "torch" not in sys.modules


def test_the_uuids_and_the_allocator_are_told_where_torch_runs(backend: Callable[..., Backend]) -> None:
    backend()
    assert torch_devices.cuda_uuids() == [f"{n}0000000-0000-4000-8000-000000000000" for n in range(2)]
    assert torch_devices.cuda_allocator(0) == (10 * GIB, 7 * GIB)


def test_the_cache_is_emptied_where_torch_runs(backend: Callable[..., Backend]) -> None:
    fake = backend()
    empty_cache()
    assert fake.asked == ["empty"]


@pytest.mark.parametrize("kind", ["cuda", "mps"])
def test_memory_that_was_committed_stays_in_the_allocator(
    backend: Callable[..., Backend], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    made: list[tuple[int, str]] = []
    fake = backend(kind)
    monkeypatch.setattr(torch, "zeros", lambda size, dtype, device: made.append((size, device)))
    monkeypatch.setattr(fake, "driver_allocated_memory", lambda: 9 * GIB, raising=False)
    held = TorchDevice(kind).warm_up_and_hold("6GiB")
    assert made == [(6 * GIB, "cuda:0" if kind == "cuda" else "mps")]
    assert fake.asked == ["synchronize"]
    assert held == (10 * GIB if kind == "cuda" else 9 * GIB)


def test_a_devices_context_makes_it_torchs_current_one(
    backend: Callable[..., Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    entered: list[int] = []

    class Current:
        def __init__(self, index: int) -> None:
            self.index = index

        def __enter__(self) -> None:
            entered.append(self.index)

        def __exit__(self, *exc: object) -> None:
            entered.append(-1)

    monkeypatch.setattr(backend(), "device", Current, raising=False)
    with on_device(TorchDevice("cuda:1")):
        assert entered == [1]
    assert entered == [1, -1]


@pytest.mark.parametrize("device", [FixedDevice(1), TorchDevice("mps")])
def test_other_devices_have_no_current_one(device: Any) -> None:
    with on_device(device):
        assert not torch.cuda.is_initialized()


@pytest.mark.parametrize("name", ["cpu", "cuda:x", "cuda:-1", "", 3])
def test_a_device_that_torch_can_not_mean_is_refused(name: Any) -> None:
    with pytest.raises(ValueError, match="device must be 'cuda:N'"):
        TorchDevice(name)


@pytest.mark.gpu
def test_on_a_gpu_committed_memory_shows_in_the_reading() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    device = TorchDevice("cuda:0")
    held = device.warm_up_and_hold("256MiB")
    reading = device.read()
    assert held >= 2**28
    assert reading.reserved is not None
    assert reading.reserved >= 2**28
    assert reading.used is not None
    assert reading.used >= reading.reserved
    empty_cache()
