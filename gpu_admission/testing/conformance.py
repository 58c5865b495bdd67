"""What every estimator, guard, dialect and device promises, as checks for your own.

Each raises ``AssertionError`` with a sentence. They need no test runner; every run tries the same
inputs.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator

from gpu_admission.errors import UnreadableBody
from gpu_admission.request import Dialect, Estimator, RequestInfo
from gpu_admission.sizes import MAX_BYTES
from gpu_admission.testing.calls import http_scope
from gpu_admission.types import Device, DeviceReading, Estimate, Guard, Limit, Outcome, Workload

BODIES: tuple[bytes, ...] = (
    b"{}",
    b'{"prompt": "hello", "max_tokens": 16}',
    b'{"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4096, "n": 4}',
    b'{"input": ["a", "b", "c"]}',
)
"""Bodies that any service may be sent."""
HOSTILE: tuple[bytes, ...] = (
    b"",
    b"\xff\xfe\x00",
    b"[]",
    b"null",
    b'"text"',
    b"[" * 5000 + b"]" * 5000,
    b'{"max_tokens": 1e999, "n": -1, "prompt": NaN}',
    b'{"max_tokens": "many", "messages": {"role": 1}, "prompt": {"a": []}}',
    b'{"prompt": [[1, 2], "x", null, {"y": 1}], "n": 99999999999999999999}',
)
"""Bodies that no service expects, and every service is sent."""


async def check_estimator(
    estimator: Estimator, requests: Iterable[RequestInfo] | None = None, *, path: str = "/v1/completions"
) -> None:
    """It gives 1 to 2**62 bytes for each request, and the same when it is asked again.

    One with a formula (``estimate(workload)``) never charges less for a larger workload.
    """
    for info in _requests(BODIES, path) if requests is None else requests:
        first = await _answer(estimator, info)
        assert 1 <= first <= MAX_BYTES, f"{first} is no size from 1 to 2**62 bytes"
        assert await _answer(estimator, info) == first, "asked again, it answers another size"
    formula = getattr(estimator, "estimate", None)
    if formula is not None:
        _check_formula(formula)


async def _answer(estimator: Estimator, info: RequestInfo) -> int:
    result = estimator(info)
    if isinstance(result, Awaitable):
        result = await result
    return result.bytes if isinstance(result, Estimate) else result


def _check_formula(formula: Callable[[Workload], Estimate]) -> None:
    steps = (1, 7, 100, 4096, 131_072)
    for name in ("prompt_tokens", "new_tokens", "sequences"):
        sizes = [formula(_workload(name, value)).bytes for value in steps]
        rising = all(small <= large for small, large in itertools.pairwise(sizes))
        assert rising, f"more {name} must not be charged less: {dict(zip(steps, sizes, strict=True))}"


def _workload(name: str, value: int) -> Workload:
    numbers = {"prompt_tokens": 16, "new_tokens": 16, "sequences": 1} | {name: value}
    return Workload(
        prompt_tokens=numbers["prompt_tokens"],
        new_tokens=numbers["new_tokens"],
        sequences=numbers["sequences"],
    )


def check_guard(make: Callable[[], Guard]) -> None:
    """It never raises, gives a reason with each ceiling, and its copies have their own state."""
    guard = make()
    assert isinstance(guard, Guard), "a guard has name, reason and ceiling(readings, outcomes, now)"
    untouched = _said(copy.deepcopy(guard), (), (), 0.0)
    twin = copy.deepcopy(guard)
    for now, (readings, outcomes) in enumerate(_histories()):
        limit = _said(guard, readings, outcomes, float(now))
        assert limit.bytes is None or limit.bytes >= 0, f"{limit.bytes} is no number of bytes"
        assert limit.bytes is None or limit.reason, "a ceiling needs a reason: it is shown in refusals"
    assert _said(twin, (), (), 0.0) == untouched, "what one device did has changed another's guard"


def _said(
    guard: Guard, readings: tuple[DeviceReading, ...], outcomes: tuple[Outcome, ...], now: float
) -> Limit:
    answer = guard.ceiling(readings, outcomes, now)
    return answer if isinstance(answer, Limit) else Limit(bytes=answer, reason=guard.reason)


def _histories() -> Iterator[tuple[tuple[DeviceReading, ...], tuple[Outcome, ...]]]:
    full = DeviceReading(total=100, used=100, free=0, ours=90, held=10, capacity=50, temperature=99.0)
    idle = DeviceReading(total=100, used=10, free=90, ours=10, held=0, capacity=80, temperature=30.0)
    unknown, failed = DeviceReading(), DeviceReading(error="no answer", faults=("Xid 79",))
    readings = [(), (unknown,), (idle,), (idle, full), (full, full), (unknown, idle), (failed,)]
    one = [
        Outcome("ok", 1),
        Outcome("error", 1),
        Outcome("oom", 1),
        Outcome("client", 1),
        Outcome("fault", 1),
    ]
    outcomes = [(), *((each,) for each in one), (Outcome("oom", 1),) * 3]
    return itertools.product(readings, outcomes)


def check_dialect(dialect: Dialect, *, path: str = "/") -> None:
    """It reads any body into finite sizes of 0 or more, or raises ``UnreadableBody``, and nothing else."""
    for info in _requests((*BODIES, *HOSTILE), path):
        try:
            workload = dialect.read(info)
        except UnreadableBody:
            continue
        for name in ("prompt_tokens", "total_prompt_tokens", "new_tokens", "sequences", "audio_seconds"):
            value = getattr(workload, name)
            assert 0 <= value < math.inf, f"{name}={value!r} is no size"


def check_device(device: Device) -> None:
    """Its readings never raise; what they report is 0 or more, and no more than there is."""
    assert isinstance(device, Device), "a device has name, key and read()"
    for _ in range(3):
        reading = device.read()
        sizes = (reading.total, reading.used, reading.free, reading.ours, reading.reserved)
        assert all(size is None or size >= 0 for size in sizes), f"a size is below 0: {reading}"
        if reading.total is not None:
            assert all(size is None or size <= reading.total for size in sizes), f"more than total: {reading}"
        assert reading.total is not None or reading.error, "a reading without a total says why in error"
    assert device.key, "a device needs a key that outlives its order"


def _requests(bodies: Iterable[bytes], path: str) -> Iterator[RequestInfo]:
    for body in bodies:
        yield RequestInfo(http_scope(path=path, headers=[(b"content-type", b"application/json")]), body)
