"""What a batch holds: its bytes once, by its callers' leases first, without ever waiting for them."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from gpu_admission import Admission, GPUAdmission, Lane, Lease, Rejected, TooLarge, Unavailable, current_lease
from gpu_admission.devices import FixedDevice
from gpu_admission.estimators import Constant
from gpu_admission.serving import Batcher, BatchEvent, batch_device
from gpu_admission.types import Estimate
from tests.serving.test_batcher import all_of, gather, turns

pytestmark = pytest.mark.anyio
MIB = 2**20


def admission(capacity: int = 100, **settings: Any) -> Admission:
    return Admission(**{"capacity": capacity, "estimator": Constant(1), "timeout": 10, **settings})


async def test_a_batch_without_requests_holds_one_lease_for_its_padded_bytes() -> None:
    budget = admission()
    held: list[tuple[int, int, int]] = []

    async def handler(items: list[int]) -> list[int]:
        lease = current_lease()
        assert lease is not None
        held.append((budget.in_use, lease.bytes, len(items) * max(items)))
        return items

    batcher = Batcher(handler, cost=lambda item: item, max_bytes=50, max_padding=1, admission=budget)
    assert await all_of(batcher, [10, 5, 7, 9, 10, 3]) == [10, 5, 7, 9, 10, 3]
    assert all(in_use == bytes == size for in_use, bytes, size in held)
    assert budget.in_use == 0
    assert budget.snapshot().peak <= 50


async def test_a_plain_handler_finds_the_batchs_lease_in_its_thread() -> None:
    budget = admission()

    def handler(items: list[int]) -> list[int]:
        lease = current_lease()
        return [lease.bytes if lease else 0] * len(items)

    assert await Batcher(handler, cost=7, admission=budget)(1) == 7


async def test_metrics_and_the_page_know_a_batchs_lease_by_the_batchers_name() -> None:
    routes: list[tuple[str, str]] = []
    budget = admission(observers=[lambda event: routes.append((event.kind, event.route))])
    batcher: Batcher[int, int] = Batcher(lambda items: items, cost=60, name="embed", admission=budget)
    assert await batcher(1) == 1
    budget.drain()
    with pytest.raises(Unavailable):
        await batcher(2)
    assert ("admitted", "batch embed") in routes
    assert ("refused", "batch embed") in routes


async def test_a_batch_waits_for_its_bytes_in_the_queue_and_is_refused_as_the_queue_does() -> None:
    budget = admission(timeout=0.05)
    batcher: Batcher[int, int] = Batcher(lambda items: items, cost=60, max_bytes=60, admission=budget)
    done = anyio.Event()

    async def other(task_status: Any = anyio.TASK_STATUS_IGNORED) -> None:
        async with budget.lease(50):
            task_status.started()
            await done.wait()

    async with anyio.create_task_group() as tasks:
        await tasks.start(other)
        with pytest.raises(Rejected, match=r"timeout=0\.05") as refused:
            await batcher(1)
        assert refused.value.reason == "queue_timeout"
        done.set()
        assert await batcher(2) == 2
    assert budget.in_use == 0


async def test_in_shadow_mode_every_batch_runs_whole() -> None:
    budget = admission(10, mode="shadow", estimator=Constant(6))
    site = Site(budget, cost=20, each=0)
    assert await site.post(list(range(8))) == list(range(8))
    assert max(site.sizes) > 1
    assert budget.in_use == 0


async def test_a_charge_that_covers_the_padding_lets_batches_run_whole_under_load() -> None:
    budget = admission(1000, estimator=lambda info: -(-int(info.body) * 10 // 7), max_waiting=1000)
    site = Site(budget, cost=lambda item: item, each=0, max_padding=0.3)
    items = [30, 31, 40, 37] * 50
    assert await site.post(items) == items
    assert all(event.outcome == "ok" for event in site.events)
    assert sum(site.sizes) / len(site.sizes) > 4
    assert budget.snapshot().peak <= 1000


async def test_a_batch_that_can_never_fit_runs_in_parts_that_do() -> None:
    budget, sizes = admission(100), []

    async def handler(items: list[int]) -> list[int]:
        sizes.append(len(items))
        return items

    batcher = Batcher(handler, cost=30, admission=budget)
    assert await all_of(batcher, range(8)) == list(range(8))
    assert max(sizes) <= 3
    sizes.clear()
    assert await all_of(batcher, range(8)) == list(range(8))
    assert sizes == [3, 3, 2], "what the refusal said is remembered"
    with pytest.raises(TooLarge, match="capacity=100 B"):
        await Batcher(handler, cost=101, admission=budget)(1)
    assert budget.in_use == 0


class Site:
    """Requests behind the middleware that meet in a batcher."""

    def __init__(self, budget: Admission, cost: Any, *, each: int, **settings: Any) -> None:
        self.budget = budget
        self.in_use: list[int] = []
        self.sizes: list[int] = []
        self.events: list[BatchEvent] = []
        self.batcher = Batcher(
            self.handle,
            cost=cost,
            admission=budget,
            observer=self.events.append,
            **{"max_padding": 1, **settings},
        )
        app = Starlette(routes=[Route("/", self.endpoint, methods=["POST"])])
        self.app = GPUAdmission(app, admission=budget)
        self.each = each

    async def handle(self, items: list[int]) -> list[int]:
        self.sizes.append(len(items))
        self.in_use.append(self.budget.in_use)
        await anyio.lowlevel.checkpoint()
        return items

    async def endpoint(self, request: Request) -> JSONResponse:
        item = int(await request.body())
        return JSONResponse(await self.batcher(item))

    async def answer(self, item: int) -> httpx.Response:
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.post("/", content=str(item))

    async def post(self, items: list[int]) -> list[Any]:
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            answers = await gather(*(lambda item=item: client.post("/", content=str(item)) for item in items))
        return [answer.json() if answer.status_code == 200 else answer.status_code for answer in answers]


async def test_requests_behind_the_middleware_are_not_charged_twice() -> None:
    budget = admission(320, estimator=Constant(10), max_waiting=1000)
    site = Site(budget, cost=10, each=10)
    assert await site.post(list(range(200))) == list(range(200))
    assert budget.snapshot().peak <= 320
    assert max(site.sizes) > 1
    assert budget.snapshot().counts["admitted"] == 200, "no batch needed a lease of its own"
    assert budget.in_use == 0


async def test_what_padding_needs_beyond_the_callers_leases_is_held_too() -> None:
    budget = admission(1000, estimator=lambda info: int(info.body), max_waiting=1000)
    site = Site(budget, cost=lambda item: item, each=0)
    assert await site.post([10, 30, 20]) == [10, 30, 20]
    assert max(site.in_use) == 90, "three rows as long as the longest"
    assert budget.in_use == 0


async def test_requests_that_fill_the_budget_never_wait_for_each_other() -> None:
    """Each holds its bytes and waits for its batch; a batch that waited for more would wait for ever."""
    budget = admission(100, estimator=lambda info: int(info.body), timeout=30, max_waiting=1000)
    site = Site(budget, cost=lambda item: item, each=0)
    items = [10, 30, 20, 40] * 25
    with anyio.fail_after(25):
        assert await site.post(items) == items
    assert budget.snapshot().peak <= 100
    assert all(event.outcome in ("ok", "refused") for event in site.events)
    assert set(budget.snapshot().counts) <= {"admitted"}, "no client was refused, and none is counted so"
    assert budget.in_use == 0


async def test_requests_with_and_without_a_lease_do_not_block_each_other() -> None:
    budget = admission(100, estimator=Constant(60), max_waiting=1000)
    site = Site(budget, cost=60, each=60)
    results: list[Any] = []

    async def job(number: int) -> None:
        results.append(await site.batcher(number))

    with anyio.fail_after(25):
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(job, number)
            assert await site.post(list(range(20))) == list(range(20))
    assert sorted(results) == list(range(20))
    assert budget.snapshot().peak <= 100
    assert budget.in_use == 0


async def test_an_item_dearer_than_its_request_is_refused_at_once_where_the_rest_is_not_free() -> None:
    refused: list[tuple[str, str]] = []
    budget = admission(100, estimator=Constant(60), timeout=30)
    budget.observe(lambda e: refused.append((e.route, e.reason)) if e.kind == "refused" else None)
    site = Site(budget, cost=80, each=60, name="embed")
    with anyio.fail_after(10):
        other = await budget.entrance.acquire(Estimate(30))
        answer = await site.answer(1)
        other.release()
    assert (answer.status_code, answer.headers["x-gpu-admission-reason"]) == (429, "queue_full")
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert "20 B more than its request holds" in answer.text
    assert refused == [("batch embed", "queue_full")]
    assert budget.in_use == 0
    assert await site.post([1]) == [1], "it fits once they are free"


async def test_an_item_that_could_never_fit_beside_anything_is_too_large() -> None:
    budget = admission(64, estimator=Constant(16))
    site = Site(budget, cost=lambda item: item, each=0)
    answer = await site.answer(100)
    assert (answer.status_code, answer.headers["x-gpu-admission-reason"]) == (413, "too_large")
    assert answer.headers["x-should-retry"] == "false"
    assert "retry-after" not in answer.headers
    assert "needs 100 B and can never fit: capacity=64 B" in answer.text
    assert budget.in_use == 0


async def test_an_item_whose_rest_could_never_fit_in_the_batchers_lane_is_too_large() -> None:
    budget = admission(100, estimator=Constant(16), lanes=[Lane("web"), Lane("batch", limit=0.2)])
    site = Site(budget, cost=lambda item: item, each=0, lane="batch")
    assert await site.post([36]) == [36]
    answer = await site.answer(37)
    assert answer.status_code == 413
    assert "needs 21 B and can never fit: lane 'batch': limit=20 B" in answer.text


async def test_what_a_batch_could_never_hold_is_remembered_where_its_callers_hold_leases() -> None:
    budget = admission(64, estimator=Constant(12), lanes=[Lane("web"), Lane("batch", limit=0.5)])
    site = Site(budget, cost=20, each=0, lane="batch", max_items=4)
    assert await site.post([1, 2, 3, 4]) == [1, 2, 3, 4]
    assert all(event.bytes <= 64 for event in site.events if event.outcome == "ok")
    assert set(budget.snapshot().counts) <= {"admitted"}, "what is run again in halves is not counted"


async def test_a_caller_that_leaves_keeps_its_bytes_until_its_batch_has_ended() -> None:
    budget = admission(100)
    gate = anyio.Event()
    seen: list[int] = []

    async def handler(items: list[int]) -> list[int]:
        await gate.wait()
        seen.append(budget.in_use)
        return items

    batcher = Batcher(handler, cost=10, admission=budget)
    scopes: list[anyio.CancelScope] = []

    async def request(number: int) -> None:
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            async with budget.lease(10):
                await batcher(number)

    async with anyio.create_task_group() as tasks:
        for number in range(4):
            tasks.start_soon(request, number)
        await turns()
        scopes[1].cancel()
        await turns()
        assert budget.in_use == 40
        gate.set()
    assert seen == [40]
    assert budget.in_use == 0


async def test_items_of_one_request_share_its_lease_and_two_batches_do_not_use_it_twice() -> None:
    budget = admission(100)
    site = Site(budget, cost=10, each=0, max_items=4, max_running=2, max_wait=0)

    async def request() -> Lease:
        async with budget.lease(40) as lease:
            assert await all_of(site.batcher, range(16)) == list(range(16))
            return lease

    await request()
    assert max(site.in_use) <= 80
    assert budget.in_use == 0


async def test_a_handler_is_told_on_which_device_its_batch_is() -> None:
    budget = admission(100, devices=[FixedDevice(1000, name="one"), FixedDevice(1000, name="two")])
    found: dict[int, str | None] = {}

    async def handler(items: list[int]) -> list[int]:
        await anyio.lowlevel.checkpoint()
        found.update(dict.fromkeys(items, batch_device()))
        return items

    events: list[BatchEvent] = []
    batcher = Batcher(handler, cost=60, max_padding=1, admission=budget, observer=events.append)

    async def request(item: int) -> None:
        async with budget.lease(60, own=True) as lease:
            await all_here.wait()
            await batcher(item)
            assert found[item] == lease.device, "it was charged there"
            held.add(lease.device)

    all_here, held = anyio.Event(), set[str]()
    async with anyio.create_task_group() as tasks:
        for item in range(2):
            tasks.start_soon(request, item)
        await turns()
        all_here.set()
    assert held == {"one", "two"}
    assert {event.device for event in events} == held
    await batcher(5)
    assert found[5] in held, "of a lease of its own"
    await Batcher(handler)(6)
    assert (found[6], batch_device()) == (None, None)


async def test_a_batch_without_requests_waits_in_its_lane() -> None:
    budget = admission(lanes=[Lane("interactive"), Lane("batch", limit=0.5)])
    batcher: Batcher[int, str] = Batcher(_lane_of, cost=20, admission=budget, lane="batch")
    assert await batcher(1) == "batch"
    with pytest.raises(TooLarge, match="batch"):
        await Batcher(_lane_of, cost=60, admission=budget, lane="batch")(1)
    with pytest.raises(ValueError, match="there is no lane 'night'"):
        Batcher(_lane_of, cost=1, admission=budget, lane="night")
    with pytest.raises(TypeError, match="admission must be given with lane"):
        Batcher(_lane_of, lane="batch")


async def _lane_of(items: list[int]) -> list[str]:
    await anyio.lowlevel.checkpoint()
    lease = current_lease()
    return [lease.lane if lease else ""] * len(items)


async def test_a_guard_or_drain_refuses_a_batch_and_its_callers_hear_why() -> None:
    budget = admission()
    batcher: Batcher[int, int] = Batcher(lambda items: items, cost=10, admission=budget)
    budget.drain()
    errors = await all_of(batcher, range(3))
    assert all(isinstance(error, Unavailable) and error.reason == "draining" for error in errors)


async def test_running_out_of_memory_reaches_the_admissions_guards() -> None:
    kinds: list[str] = []
    budget = admission()
    budget.observe(lambda event: kinds.append(event.outcome) if event.kind == "released" else None)

    def handler(items: list[int]) -> list[int]:
        if len(items) > 1:
            raise MemoryError
        return items

    assert await all_of(Batcher(handler, cost=10, admission=budget), range(2)) == [0, 1]
    assert kinds == ["oom", "ok", "ok"]


@pytest.mark.parametrize(("held", "kept"), [(None, 30), (20, 30), (40, 40)])
def test_a_thread_that_outlives_its_loop_keeps_its_batchs_bytes(held: int | None, kept: int) -> None:
    go_on, threads = threading.Event(), list[threading.Thread]()
    begun = threading.Event()
    admission = Admission(capacity=100, estimator=1)

    def handler(items: list[int]) -> list[int]:
        threads.append(threading.current_thread())
        begun.set()
        go_on.wait(20)
        return items

    batcher = Batcher(handler, cost=30, admission=admission)

    async def request() -> None:
        if held is None:
            await batcher(1)
        else:
            async with admission.lease(held):
                await batcher(1)

    async def main() -> asyncio.Task[None]:
        task = asyncio.create_task(request())
        await asyncio.to_thread(begun.wait, 20)
        return task

    assert asyncio.run(main()).cancelled()
    assert admission.snapshot().in_use == kept
    go_on.set()
    asyncio.run(batcher.aclose())
    threads[0].join(20)
    assert admission.snapshot().in_use == 0
