"""Leases: resized, kept, ended once from anywhere, and found again."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncGenerator
from contextlib import nullcontext
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from gpu_admission import Admission, Lease, QueueFull, Rejected, TooLarge, current_lease
from gpu_admission.admission.block import LeaseContext
from gpu_admission.admission.context import held_lease
from gpu_admission.types import Estimate
from tests.cases.harness import settle

pytestmark = pytest.mark.anyio


def budget(**settings: Any) -> Admission:
    return Admission(**{"capacity": 100, "estimator": 1, **settings})


async def hold(admission: Admission, size: int) -> Lease:
    """A lease that no context knows, so that others are not nested in it."""
    return await admission.entrance.acquire(Estimate(size))


def is_at_rest(admission: Admission) -> bool:
    rest = admission.snapshot()
    return (rest.in_use, rest.running, rest.waiting, rest.waiting_bytes) == (0, 0, 0, 0)


# resizing


async def test_shrinking_wakes_those_who_wait() -> None:
    admission = budget()
    lease = await hold(admission, 100)
    got: list[int] = []

    async def wait(size: int) -> None:
        async with admission.lease(size) as later:
            got.append(later.bytes)

    async with anyio.create_task_group() as group:
        group.start_soon(wait, 30)
        group.start_soon(wait, 40)
        await settle()
        assert got == []
        lease.resize(60)
        await settle()
        assert sorted(got) == [30, 40]
        assert lease.bytes == 60
        lease.release()
    assert is_at_rest(admission)


async def test_growing_never_waits() -> None:
    admission = budget(timeout=100.0)
    lease, other = await hold(admission, 40), await hold(admission, 40)
    lease.resize("60B")
    assert admission.snapshot().in_use == 100
    with pytest.raises(QueueFull, match="growing to 61 B does not fit now") as refused:
        lease.resize(61)
    assert lease.bytes == 60
    assert refused.value.needed == 61
    assert refused.value.retry_after is not None
    assert 1 <= refused.value.retry_after <= 60
    assert refused.value.headers is not None
    assert refused.value.headers["Retry-After"] == str(refused.value.retry_after)
    lease.release()
    other.release()
    assert admission.snapshot().peak == 100
    assert is_at_rest(admission)


async def test_growing_beyond_what_could_ever_be_held_is_too_large() -> None:
    admission = budget()
    lease = await hold(admission, 40)
    with pytest.raises(TooLarge, match="needs 101 B and can never fit: capacity=100 B") as refused:
        lease.resize(101)
    assert (lease.bytes, refused.value.retry_after) == (40, None)
    assert refused.value.headers is not None
    assert refused.value.headers["X-GPU-Admission-Reason"] == "too_large"
    lease.release()
    assert is_at_rest(admission)


async def test_a_lease_is_resized_to_a_size_as_people_write_it() -> None:
    admission = budget(capacity="2KiB")
    async with admission.lease("1KiB") as lease:
        lease.resize("1.5KiB")
        assert lease.bytes == 1536
        lease.resize(0)
        assert admission.snapshot().in_use == 0
        with pytest.raises(ValueError, match="size"):
            lease.resize(-1)
        with pytest.raises(TypeError, match="size"):
            lease.resize(1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["shadow", "off"])
async def test_outside_of_enforcement_growing_is_never_refused_and_nothing_is_left(mode: Any) -> None:
    admission = budget(mode=mode)
    lease, other = await hold(admission, 80), await hold(admission, 80)
    lease.resize(150)
    assert lease.bytes == 150
    lease.resize(10)
    assert admission.snapshot().in_use == (90 if mode == "shadow" else 0)
    lease.release()
    other.release()
    assert is_at_rest(admission)


async def test_an_ended_lease_is_not_resized() -> None:
    admission = budget()
    async with admission.lease(10) as lease:
        lease.release()
        with pytest.raises(RuntimeError, match="has ended"):
            lease.resize(20)
    assert is_at_rest(admission)


# ending


async def test_it_ends_once_however_often_it_is_released() -> None:
    admission = budget()
    async with admission.lease(60) as lease:
        lease.release()
        lease.release()
        assert admission.snapshot().in_use == 0
        async with admission.lease(60, timeout=0):
            lease.release()
            assert admission.snapshot().in_use == 60
    assert is_at_rest(admission)


async def test_it_ends_where_the_work_raised() -> None:
    admission = budget()
    with pytest.raises(LookupError):
        async with admission.lease(60) as lease:
            raise LookupError
    assert lease.outcome == ("error", "LookupError")
    assert is_at_rest(admission)


async def test_it_ends_where_the_work_was_cancelled() -> None:
    admission = budget()
    with anyio.CancelScope() as scope:
        async with admission.lease(60) as lease:
            scope.cancel()
            await anyio.lowlevel.checkpoint()
    assert lease.outcome[0] == "client"
    assert is_at_rest(admission)


async def test_a_classifier_that_fails_keeps_no_bytes(caplog: pytest.LogCaptureFixture) -> None:
    def broken(error: BaseException) -> Any:
        raise ZeroDivisionError

    admission = budget(classify=broken)
    with pytest.raises(LookupError):
        async with admission.lease(60) as lease:
            raise LookupError
    assert lease.outcome == ("error", "LookupError")
    assert "classify failed on LookupError" in caplog.text
    assert is_at_rest(admission)


async def test_released_from_a_thread_it_wakes_those_who_wait() -> None:
    admission = budget()
    lease = await hold(admission, 100)
    woken = anyio.Event()

    async def wait() -> None:
        async with admission.lease(50):
            woken.set()

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await settle()
        await anyio.to_thread.run_sync(lease.release)
        with anyio.fail_after(10):
            await woken.wait()
    assert is_at_rest(admission)


async def test_many_threads_may_shrink_and_release_at_once() -> None:
    admission = budget(capacity=1000, max_waiting=1000)
    leases = [await hold(admission, 10) for _ in range(100)]
    served = 0
    start = threading.Barrier(4)

    def work(part: list[Lease]) -> None:
        start.wait()
        for lease in part:
            lease.resize(5)
            with lease.keep():
                lease.release()
                lease.release()

    async def wait() -> None:
        nonlocal served
        async with admission.lease(10):
            served += 1

    async with anyio.create_task_group() as group:
        for _ in range(100):
            group.start_soon(wait)
        for part in range(4):
            group.start_soon(anyio.to_thread.run_sync, work, leases[part::4])
    assert served == 100
    assert is_at_rest(admission)
    assert all(lease.ended for lease in leases)


# keeping


async def test_kept_bytes_stay_held_until_the_last_handle_is_closed() -> None:
    admission = budget()
    async with admission.lease(60) as lease:
        first, second = lease.keep(), lease.keep()
    assert admission.snapshot().in_use == 60
    first.close()
    first.close()
    assert admission.snapshot().in_use == 60
    with second:
        assert not lease.ended
    assert lease.ended
    assert is_at_rest(admission)


async def test_handles_that_are_closed_before_the_work_returns_end_nothing() -> None:
    admission = budget()
    async with admission.lease(60) as lease:
        with lease.keep():
            pass
        assert admission.snapshot().in_use == 60
        handle = lease.keep()
        lease.release()
        assert admission.snapshot().in_use == 60
        handle.close()
        assert admission.snapshot().in_use == 0
        with pytest.raises(RuntimeError, match="has ended"):
            lease.keep()


async def test_a_kept_lease_may_still_be_resized() -> None:
    admission = budget()
    async with admission.lease(60) as lease:
        handle = lease.keep()
    lease.resize(20)
    assert admission.snapshot().in_use == 20
    handle.close()
    assert is_at_rest(admission)


async def test_one_handle_that_two_threads_close_counts_once() -> None:
    admission = budget()
    for _ in range(200):
        async with admission.lease(60) as lease:
            handle, other = lease.keep(), lease.keep()
        start = threading.Barrier(2)

        def close() -> None:
            start.wait()  # noqa: B023
            handle.close()  # noqa: B023

        async with anyio.create_task_group() as group:
            group.start_soon(anyio.to_thread.run_sync, close)
            group.start_soon(anyio.to_thread.run_sync, close)
        assert admission.snapshot().in_use == 60
        other.close()
    assert is_at_rest(admission)


# finding


async def test_the_lease_is_found_while_it_is_held_and_not_afterwards() -> None:
    admission = budget()
    assert current_lease() is None
    async with admission.lease(10) as lease:
        assert current_lease() is lease
        assert held_lease(admission.endings) is lease
        lease.release()
        assert current_lease() is None
        assert held_lease(admission.endings) is None
    assert current_lease() is None


async def test_inside_a_lease_the_same_one_is_used_again() -> None:
    admission = budget()
    async with admission.lease(100) as outer:
        async with admission.lease(100, timeout=0) as inner:
            assert inner is outer
        assert not outer.ended
        assert admission.snapshot().in_use == 100
    assert is_at_rest(admission)


async def test_a_task_that_was_started_inside_a_lease_uses_it_too() -> None:
    admission = budget()
    async with admission.lease(100) as outer, anyio.create_task_group() as group:

        async def nested() -> None:
            async with admission.lease(50, timeout=0) as inner:
                assert inner is outer

        group.start_soon(nested)


async def test_leases_of_two_admissions_are_held_at_once() -> None:
    one, other = budget(), budget()
    async with one.lease(10) as outer, other.lease(20) as inner:
        assert current_lease() is inner
        assert (held_lease(one.endings), held_lease(other.endings)) == (outer, inner)
        async with one.lease(99, timeout=0) as again:
            assert again is outer
    assert is_at_rest(one)
    assert is_at_rest(other)


async def test_an_outer_lease_that_ended_early_is_not_used_again() -> None:
    admission = budget()
    async with admission.lease(100) as outer:
        outer.release()
        async with admission.lease(100, timeout=0) as inner:
            assert inner is not outer
            assert current_lease() is inner
        assert current_lease() is None
    assert current_lease() is None
    assert is_at_rest(admission)


async def test_ended_leases_are_not_remembered() -> None:
    """As where a worker leaves one generator after the other to be closed elsewhere."""
    admission = budget()
    for _ in range(50):
        lease = await admission.lease(10).__aenter__()
        lease.release()
    async with admission.lease(10) as lease:
        chain = 0
        outer = lease.outer
        while outer is not None:
            chain, outer = chain + 1, outer.outer
        assert chain <= 1


async def test_a_context_is_entered_once() -> None:
    """Shared between tasks it could not tell whose lease to end."""
    admission = budget()
    context = admission.lease(10)
    async with context:
        with pytest.raises(RuntimeError, match="once"):
            await context.__aenter__()
    with pytest.raises(RuntimeError, match="once"):
        await context.__aenter__()
    assert is_at_rest(admission)


async def test_a_lease_of_a_generator_is_given_back_when_another_task_closes_it() -> None:
    admission = budget()
    stream = _chunks(admission)
    assert await anext(stream) == 0

    async with anyio.create_task_group() as group:
        group.start_soon(stream.aclose)
    assert is_at_rest(admission)


async def test_a_lease_of_a_generator_is_given_back_when_it_is_collected(anyio_backend_name: str) -> None:
    admission = budget()
    stream = _chunks(admission)
    await anext(stream)
    trio_says_so = pytest.warns(ResourceWarning) if anyio_backend_name == "trio" else nullcontext()
    with trio_says_so:
        del stream
        gc.collect()
        await settle()
    assert is_at_rest(admission)


async def _chunks(admission: Admission) -> AsyncGenerator[int, None]:
    async with admission.lease(60):
        for number in range(3):
            yield number


async def test_a_lease_says_what_it_is() -> None:
    admission = budget(capacity="4GiB")
    async with admission.lease("1GiB") as lease:
        assert repr(lease) == f"<Lease {lease.number} 1.00 GiB lane='default' open>"
        assert (lease.device, lease.device_index, lease.lane) == ("device", 0, "default")
        assert lease.admission is admission
        assert lease.estimate.bytes == 2**30
        lease.record_peak(5)
        lease.record_peak(3)
        assert lease.peak == 5
        lease.report_oom()
    assert lease.outcome == ("oom", "reported")
    assert repr(lease).endswith("ended>")
    assert isinstance(admission.lease(1), LeaseContext)


async def test_a_refused_context_holds_nothing_and_leaves_no_lease() -> None:
    admission = budget(timeout=0)
    async with admission.lease(100):
        context = budget(timeout=0, max_waiting=0, capacity=1).lease(2)
        with pytest.raises(Rejected):
            await context.__aenter__()
        await context.__aexit__(None, None, None)
    assert current_lease() is None


def test_a_lease_that_its_loop_left_behind_may_be_ended_without_one() -> None:
    admission = budget()
    kept: list[Any] = []

    async def work() -> None:
        async with admission.lease(60) as lease:
            kept.append(lease.keep())

    asyncio.run(work())
    assert admission.snapshot().in_use == 60
    kept[0].close()
    assert is_at_rest(admission)
