"""Estimators that learn are told what requests really took."""

from __future__ import annotations

import pytest

from gpu_admission import Admission, Estimate, GPUAdmission, current_lease
from gpu_admission.estimators import Learned
from gpu_admission.request import RequestInfo
from gpu_admission.types import Receive, Scope, Send
from tests.bench.asgi import CHAT, call, echo, scope_of

pytestmark = pytest.mark.anyio


class Meter:
    """A device that has ``used`` bytes in use, and ``most`` since it was started."""

    used = 100
    most = 100

    def start(self) -> int:
        self.most = self.used
        return self.used

    def peak(self) -> int:
        return self.most


def charged_first(info: RequestInfo) -> int:
    return 100


async def recorded_peaks(learned: Learned, peak: int, times: int = 50) -> Admission:
    admission = Admission(capacity=1000, estimator=learned)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        lease = current_lease()
        assert lease is not None
        lease.record_peak(peak)
        await echo(scope, receive, send)

    gate = GPUAdmission(app, admission=admission)
    for _ in range(times):
        await call(gate, scope_of())
    return admission


async def test_what_the_app_records_corrects_later_charges() -> None:
    learned = Learned(charged_first)
    await recorded_peaks(learned, 300)
    assert 300 <= charge(learned) <= 330


async def test_a_charge_comes_down_as_well() -> None:
    learned = Learned(charged_first)
    await recorded_peaks(learned, 50, times=120)
    assert 50 <= charge(learned) < 60


async def test_a_request_that_failed_teaches_nothing() -> None:
    learned = Learned(charged_first)
    admission = Admission(capacity=1000, estimator=learned)

    async def failing(scope: object, receive: object, send: object) -> None:
        lease = current_lease()
        assert lease is not None
        lease.record_peak(500)
        raise ZeroDivisionError

    for _ in range(20):
        with pytest.raises(ZeroDivisionError):
            await call(GPUAdmission(failing, admission=admission), scope_of())
    assert charge(learned) == 100


async def test_a_request_that_ran_alone_is_measured() -> None:
    meter = Meter()
    learned = Learned(charged_first, meter=meter)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        meter.most = 500
        await echo(scope, receive, send)

    gate = GPUAdmission(app, capacity=1000, estimator=learned)
    for _ in range(50):
        await call(gate, scope_of())
    assert 400 <= charge(learned) <= 440


async def test_a_request_that_had_company_is_not_measured() -> None:
    meter = Meter()
    learned = Learned(charged_first, meter=meter)
    admission = Admission(capacity=1000, estimator=learned)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        other = await admission.entrance.acquire(Estimate(1))
        meter.most = 900
        other.release()
        await echo(scope, receive, send)

    for _ in range(50):
        await call(GPUAdmission(app, admission=admission), scope_of())
    assert charge(learned) == 100


async def test_an_estimator_learns_the_capacity_of_its_admission() -> None:
    learned = Learned(charged_first)
    admission = Admission(capacity=1234, estimator={"/v1/**": learned, "/other": 5})
    assert callable(learned.capacity)
    assert learned.capacity() == 1234
    await call(GPUAdmission(echo, admission=admission), scope_of())


def charge(learned: Learned) -> int:
    result = learned(RequestInfo(scope_of(), CHAT))
    assert isinstance(result, Estimate)
    return result.bytes


async def test_a_request_that_ran_out_of_memory_puts_the_charges_back() -> None:
    learned = Learned(charged_first)
    admission = await recorded_peaks(learned, 50, times=120)
    assert charge(learned) < 60

    async def failing(scope: object, receive: object, send: object) -> None:
        raise MemoryError("CUDA out of memory")

    with pytest.raises(MemoryError):
        await call(GPUAdmission(failing, admission=admission), scope_of())
    assert charge(learned) == 100
