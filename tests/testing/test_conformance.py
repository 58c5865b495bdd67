"""The checks for users' own parts: ours pass them, and each catches what it is for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from gpu_admission import DeviceReading, Estimate, Guard, RequestInfo, Workload
from gpu_admission.devices import FixedDevice, HostMemory
from gpu_admission.estimators import Constant, Linear
from gpu_admission.guards import FaultGuard, MemoryGuard, OutOfMemoryGuard, ThermalGuard
from gpu_admission.testing import FakeDevice, check_device, check_dialect, check_estimator, check_guard
from gpu_admission.types import Outcome
from gpu_admission.workloads import Guess, Ollama, OpenAI

pytestmark = pytest.mark.anyio


async def asks_a_model(info: RequestInfo) -> int:
    return 5


@pytest.mark.parametrize("estimator", [Constant("1GiB"), Linear({"new_tokens": 5}), asks_a_model])
async def test_estimators_that_keep_their_promises_pass(estimator: Any) -> None:
    await check_estimator(estimator)


class Shrinking:
    needs_body = True

    def __call__(self, info: RequestInfo) -> int:
        return 7

    def estimate(self, workload: Workload) -> Estimate:
        return Estimate(max(1, 1000 - workload.prompt_tokens))


class Restless:
    needs_body = True

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, info: RequestInfo) -> int:
        self.asked += 1
        return self.asked


@pytest.mark.parametrize(
    ("estimator", "complaint"),
    [
        (lambda info: 0, "no size from 1"),
        (lambda info: 2**63, "no size from 1"),
        (Shrinking(), "more prompt_tokens must not be charged less"),
        (Restless(), "asked again"),
    ],
)
async def test_an_estimator_that_breaks_one_is_caught(estimator: Any, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        await check_estimator(estimator)


@pytest.mark.parametrize("make", [FaultGuard, MemoryGuard, OutOfMemoryGuard, ThermalGuard])
def test_our_guards_pass(make: Callable[[], Guard]) -> None:
    check_guard(make)


SHARED: list[int] = []


class Leaky:
    name = "leaky"
    reason = "because"

    def ceiling(
        self, readings: Sequence[DeviceReading], outcomes: Sequence[Outcome], now: float
    ) -> int | None:
        SHARED.append(1)
        return len(SHARED)


class Mute:
    name = "mute"
    reason = ""

    def ceiling(
        self, readings: Sequence[DeviceReading], outcomes: Sequence[Outcome], now: float
    ) -> int | None:
        return 5 if outcomes else None


@pytest.mark.parametrize(("make", "complaint"), [(Leaky, "another's guard"), (Mute, "needs a reason")])
def test_a_guard_that_breaks_a_promise_is_caught(make: Callable[[], Guard], complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check_guard(make)


@pytest.mark.parametrize("dialect", [OpenAI(), Ollama(), Guess()])
def test_our_dialects_pass(dialect: Any) -> None:
    check_dialect(dialect)


def test_a_dialect_that_lets_another_error_out_is_caught() -> None:
    class Trusting:
        def read(self, info: RequestInfo) -> Workload:
            return Workload(prompt_tokens=len(info.json["prompt"]))

    with pytest.raises(KeyError):
        check_dialect(Trusting())


@pytest.mark.parametrize("device", [FixedDevice(100), HostMemory(), FakeDevice("24GiB", ours="2GiB")])
def test_our_devices_pass(device: Any) -> None:
    check_device(device)


def test_a_device_that_tells_more_than_there_is_is_caught() -> None:
    device = FakeDevice(script=[DeviceReading(total=10, used=20)])
    with pytest.raises(AssertionError, match="more than total"):
        check_device(device)
    with pytest.raises(AssertionError, match="says why"):
        check_device(FakeDevice(script=[DeviceReading()]))
