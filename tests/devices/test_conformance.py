"""What every device promises, whatever it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from gpu_admission.devices import FixedDevice, HostMemory, NvmlDevice, TorchDevice
from gpu_admission.types import Device, DeviceReading

from .fake_nvml import UNKNOWN, FakeDriver, a10, installed


def nvml() -> Device:
    return NvmlDevice(0, env={})


DEVICES = [nvml, TorchDevice, lambda: FixedDevice("8GiB"), HostMemory]


@pytest.fixture
def driver() -> Iterator[FakeDriver]:
    with installed(FakeDriver(a10())) as fake:
        yield fake


@pytest.mark.parametrize("make", DEVICES)
class TestDevice:
    def test_it_is_a_device(self, driver: FakeDriver, make: Callable[[], Device]) -> None:
        device = make()
        assert isinstance(device, Device)
        assert device.name
        assert device.key
        assert type(device).__name__ in repr(device)

    def test_a_reading_is_consistent(self, driver: FakeDriver, make: Callable[[], Device]) -> None:
        reading = make().read()
        assert isinstance(reading, DeviceReading)
        assert reading.taken_at > 0
        assert (reading.total is None) <= (reading.error is not None)
        if reading.total is not None and reading.used is not None and reading.free is not None:
            assert reading.used + reading.free == reading.total
        assert (reading.capacity, reading.held) == (None, None)

    def test_its_identity_stays(self, driver: FakeDriver, make: Callable[[], Device]) -> None:
        device = make()
        device.read()
        key, name = device.key, device.name
        driver.down = UNKNOWN
        device.read()
        assert (device.key, device.name) == (key, name)


def test_a_fixed_device_needs_a_size() -> None:
    with pytest.raises(ValueError, match="total must be above 0"):
        FixedDevice(0)
