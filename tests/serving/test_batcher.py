"""One caller's view of a batcher: results, errors, leaving, refusals, the end."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import numpy
import pytest

from gpu_admission import QueueFull, TooLarge, Unavailable, current_lease
from gpu_admission.serving import Batcher, BatchEvent, caller_contexts
from gpu_admission.serving.comebacks import Comebacks

pytestmark = pytest.mark.anyio

who: ContextVar[str] = ContextVar("who", default="nobody")


async def gather(*calls: Callable[[], Awaitable[Any]]) -> list[Any]:
    """The results of ``calls``, run at once; an error stands in the place of its result."""
    results: list[Any] = [None] * len(calls)

    async def call(place: int) -> None:
        try:
            results[place] = await calls[place]()
        except Exception as error:
            results[place] = error

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            for place in range(len(calls)):
                tasks.start_soon(call, place)
    return results


async def all_of(batcher: Batcher[Any, Any], items: Sequence[Any]) -> list[Any]:
    return await gather(*(lambda item=item: batcher(item) for item in items))


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await anyio.lowlevel.checkpoint()


class Gate:
    """A handler that notes its batches and ends each when told."""

    def __init__(self, *, is_open: bool = False) -> None:
        self.batches: list[list[Any]] = []
        self.ended: list[list[Any]] = []
        self.is_open = is_open
        self._turns: list[anyio.Event] = []
        self._begun = anyio.Event()

    async def __call__(self, items: list[Any]) -> list[Any]:
        self.batches.append(items)
        self._begun.set()
        event = anyio.Event()
        self._turns.append(event)
        if not self.is_open:
            await event.wait()
        else:
            await anyio.lowlevel.checkpoint()
        self.ended.append(items)
        return [("result", item) for item in items]

    async def has_begun(self, batches: int) -> None:
        """Wait until it has been given so many."""
        with anyio.fail_after(20):
            while len(self.batches) < batches:
                self._begun = anyio.Event()
                await self._begun.wait()

    def open(self) -> None:
        self.is_open = True
        for event in self._turns:
            event.set()


async def test_a_thousand_callers_each_get_their_own_result() -> None:
    async def double(items: list[int]) -> list[int]:
        await anyio.lowlevel.checkpoint()
        return [item * 2 for item in items]

    assert await all_of(Batcher(double), range(1000)) == [item * 2 for item in range(1000)]


async def test_an_item_alone_starts_within_one_turn_of_the_loop() -> None:
    turn, started, handed = 0, [], []

    async def handler(items: list[int]) -> list[int]:
        started.append(turn)
        return items

    async def count_turns() -> None:
        nonlocal turn
        while True:
            await anyio.lowlevel.checkpoint()
            turn += 1

    batcher = Batcher(handler, max_wait=1000)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(count_turns)
        for _ in range(5):
            await turns(3)
            before = turn
            await batcher(1)
            handed.append(started[-1] - before)
        tasks.cancel_scope.cancel()
    # trio shuffles the tasks of a turn: the counter may come last in one and first in the next.
    assert max(handed) <= (1 if asyncio._get_running_loop() is not None else 2)


async def test_items_that_come_while_one_runs_go_together_when_it_ends() -> None:
    gate = Gate()
    batcher = Batcher(gate, max_wait=1000)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(batcher, 0)
        await turns()
        for item in range(1, 6):
            tasks.start_soon(batcher, item)
        await turns()
        assert gate.batches == [[0]]
        gate.open()
    assert [sorted(batch) for batch in gate.batches] == [[0], [1, 2, 3, 4, 5]]


@pytest.mark.parametrize("max_items", [1, 3])
async def test_no_batch_has_more_than_max_items(max_items: int) -> None:
    gate = Gate(is_open=True)
    await all_of(Batcher(gate, max_items=max_items), range(10))
    assert sum(map(len, gate.batches)) == 10
    assert max(map(len, gate.batches)) == max_items


async def test_bl_96_rows_are_counted_where_items_have_several() -> None:
    gate = Gate(is_open=True)
    await all_of(Batcher(gate, rows=lambda item: 32, max_items=64), range(10))
    assert [len(batch) for batch in gate.batches] == [2] * 5


async def test_a_second_batch_waits_for_company_until_it_is_full() -> None:
    gate = Gate()
    events: list[BatchEvent] = []
    batcher = Batcher(gate, max_running=2, max_items=3, max_wait=0.05, observer=events.append)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(batcher, 0)
        await turns()
        tasks.start_soon(batcher, 1)
        await turns()
        assert gate.batches == [[0]], "a slot is free, but company may come"
        tasks.start_soon(batcher, 2)
        tasks.start_soon(batcher, 3)
        await turns()
        assert [sorted(batch) for batch in gate.batches[1:]] == [[1, 2, 3]]
        gate.open()
    assert sorted(event.closed_by for event in events) == ["idle", "items"]


async def test_a_second_batch_that_gets_no_company_starts_after_max_wait() -> None:
    gate = Gate()
    events: list[BatchEvent] = []
    batcher = Batcher(gate, max_running=2, max_wait=0.05, observer=events.append)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(batcher, 0)
        await turns()
        tasks.start_soon(batcher, 1)
        await gate.has_begun(2)
        gate.open()
    assert sorted(event.closed_by for event in events) == ["idle", "max_wait"]


async def test_n_27_a_batch_runs_as_none_of_its_callers() -> None:
    seen: list[tuple[str, Any, set[str]]] = []

    async def handler(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        seen.append((who.get(), current_lease(), {item["model"] for item in items}))
        who.set("left over from a batch")
        return items

    batcher = Batcher(handler, key=lambda item: item["model"])

    async def caller(number: int) -> Any:
        who.set(f"user{number}")
        return await batcher({"model": "ab"[number % 2], "n": number})

    results = await gather(*(lambda n=n: caller(n) for n in range(100)))
    assert [result["n"] for result in results] == list(range(100))
    assert all(name == "nobody" and lease is None and len(models) == 1 for name, lease, models in seen)


@pytest.mark.parametrize("threaded", [False, True])
async def test_n_27_what_belongs_to_each_caller_is_handed_over(threaded: bool) -> None:
    def names(items: list[int]) -> list[str]:
        return [context[who] for context in caller_contexts()]

    async def names_async(items: list[int]) -> list[str]:
        return names(items)

    batcher: Batcher[int, str] = Batcher(names if threaded else names_async)

    async def caller(number: int) -> str:
        who.set(f"user{number}")
        return await batcher(number)

    results = await gather(*(lambda n=n: caller(n) for n in range(50)))
    assert results == [f"user{number}" for number in range(50)]
    assert caller_contexts() == ()


async def test_n_28_one_long_item_does_not_make_a_batch_dearer_than_its_bytes() -> None:
    sizes = [20] * 31 + [8000]
    batches: list[list[str]] = []

    async def handler(items: list[str]) -> list[int]:
        batches.append(items)
        return [len(item) for item in items]

    batcher = Batcher(handler, cost=len, max_bytes=16_000)
    assert await all_of(batcher, ["x" * size for size in sizes]) == sizes
    assert all(len(batch) * max(map(len, batch)) <= 16_000 for batch in batches)
    assert len(batches) <= 3


async def test_n_28_an_outlier_is_not_starved_by_those_that_keep_coming() -> None:
    order: list[int] = []

    async def handler(items: list[int]) -> list[int]:
        order.extend(items)
        await anyio.lowlevel.checkpoint()
        return items

    batcher = Batcher(handler, cost=lambda item: item, max_bytes=8000, max_items=4)

    async def keep_coming() -> None:
        for _ in range(50):
            await batcher(20)

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(keep_coming)
        await turns(3)
        await batcher(8000)
        ahead = order.index(8000)
        tasks.cancel_scope.cancel()
    assert ahead <= 40


@pytest.mark.parametrize("moment", ["before it closes", "while it runs"])
@pytest.mark.parametrize("threaded", [False, True])
async def test_bl_93_cancelled_callers_leave_and_the_others_get_their_results(
    moment: str, threaded: bool
) -> None:
    batches: list[list[int]] = []
    gate, thread_gate, begun = anyio.Event(), threading.Event(), threading.Event()

    async def on_loop(items: list[int]) -> list[int]:
        batches.append(items)
        begun.set()
        await gate.wait()
        return items

    def in_thread(items: list[int]) -> list[int]:
        batches.append(items)
        begun.set()
        assert thread_gate.wait(20)
        return items

    batcher: Batcher[int, int] = Batcher(in_thread if threaded else on_loop)
    results: dict[int, int] = {}
    scopes: dict[int, anyio.CancelScope] = {}

    async def caller(number: int) -> None:
        with anyio.CancelScope() as scopes[number]:
            results[number] = await batcher(number)

    async with anyio.create_task_group() as tasks:
        if moment == "before it closes":
            tasks.start_soon(caller, 100)
            await turns()
        for number in range(8):
            tasks.start_soon(caller, number)
        await turns()
        await anyio.to_thread.run_sync(begun.wait)
        for number in (0, 5):
            scopes[number].cancel()
        await turns()
        gate.set()
        thread_gate.set()
    others = [1, 2, 3, 4, 6, 7]
    assert {number: results[number] for number in results if number != 100} == {n: n for n in others}
    if moment == "before it closes":
        assert sorted(batches[-1]) == others, "those that left are not run"
    assert await all_of(batcher, range(8)) == list(range(8))
    assert (batcher.waiting, batcher.running) == (0, 0)


async def test_when_every_caller_has_left_the_handler_is_cancelled() -> None:
    ended: list[str] = []
    events: list[BatchEvent] = []

    async def handler(items: list[int]) -> list[int]:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("cancelled")
        return items

    batcher = Batcher(handler, observer=events.append)
    async with anyio.create_task_group() as tasks:
        for number in range(3):
            tasks.start_soon(batcher, number)
        await turns()
        tasks.cancel_scope.cancel()
    await batcher.aclose()
    assert ended == ["cancelled"]
    assert [event.outcome for event in events] == ["client"]


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda items: items[:-1], id="one too few"),
        pytest.param(lambda items: [*items, 9], id="one too many"),
        pytest.param(lambda items: None, id="None"),
        pytest.param(lambda items: (item for item in items), id="a generator"),
        pytest.param(lambda items: dict.fromkeys(items), id="a dict"),
        pytest.param(lambda items: set(items), id="a set"),
        pytest.param(lambda items: "x" * len(items), id="a string"),
        pytest.param(lambda items: numpy.array(3), id="an array of no dimension"),
    ],
)
@pytest.mark.parametrize("threaded", [False, True])
async def test_bl_95_a_wrong_number_of_results_fails_all_and_shifts_none(wrong: Any, threaded: bool) -> None:
    async def on_loop(items: list[int]) -> Any:
        return wrong(items)

    batcher: Batcher[int, Any] = Batcher(wrong if threaded else on_loop)
    errors = await all_of(batcher, range(8))
    assert all(isinstance(error, (TypeError, ValueError)) for error in errors), errors
    if not isinstance(wrong([1]), numpy.ndarray):
        assert all("the handler" in str(error) for error in errors)


async def test_bl_95_an_array_counts_by_its_rows() -> None:
    batcher: Batcher[int, Any] = Batcher(lambda items: numpy.array([[item, item] for item in items]))
    assert [list(row) for row in await all_of(batcher, range(8))] == [[item, item] for item in range(8)]


async def test_an_error_among_the_results_goes_to_its_own_caller() -> None:
    def handler(items: list[int]) -> list[int | Exception]:
        return [ValueError(item) if item == 3 else item for item in items]

    results = await all_of(Batcher(handler), range(6))
    assert isinstance(results.pop(3), ValueError)
    assert results == [0, 1, 2, 4, 5]


async def test_a_plain_function_may_return_what_is_to_be_awaited() -> None:
    async def later(items: list[int]) -> list[int]:
        await anyio.lowlevel.checkpoint()
        return items

    assert await all_of(Batcher(lambda items: later(items)), range(3)) == [0, 1, 2]


async def test_the_handlers_error_goes_to_every_caller_of_its_batch_and_no_further() -> None:
    fails = True

    async def handler(items: list[int]) -> list[int]:
        if fails:
            raise LookupError("no model")
        return items

    batcher = Batcher(handler)
    errors = await all_of(batcher, range(5))
    assert all(isinstance(error, LookupError) for error in errors)
    depth = 0
    trace = errors[0].__traceback__
    while trace is not None:
        depth, trace = depth + 1, trace.tb_next
    assert depth < 15, "one caller's traceback holds another's frames"
    fails = False
    assert await all_of(batcher, range(5)) == list(range(5))


async def test_what_ends_a_program_comes_out_of_a_caller() -> None:
    async def handler(items: list[int]) -> list[int]:
        raise SystemExit(3)

    batcher = Batcher(handler)
    with pytest.raises(SystemExit):
        await batcher(1)
    assert (batcher.waiting, batcher.running) == (0, 0)


async def test_a_batch_out_of_memory_runs_in_halves_and_its_size_is_remembered() -> None:
    sizes: list[int] = []

    async def handler(items: list[int]) -> list[int]:
        sizes.append(len(items))
        if len(items) > 5:
            raise MemoryError
        return items

    events: list[BatchEvent] = []
    batcher = Batcher(handler, observer=events.append)
    assert await all_of(batcher, range(16)) == list(range(16))
    assert sizes == [16, 8, 4, 4, 8, 4, 4]
    assert [event.outcome for event in events].count("oom") == 3
    sizes.clear()
    assert await all_of(batcher, range(16)) == list(range(16))
    assert sizes == [4, 4, 4, 4], "no later batch is larger than half of what failed"


async def test_an_item_that_alone_runs_out_of_memory_fails_alone() -> None:
    def handler(items: list[int]) -> list[int]:
        if 3 in items:
            raise RuntimeError("CUDA out of memory. Tried to allocate 1 GiB")
        return items

    results = await all_of(Batcher(handler), range(8))
    assert isinstance(results.pop(3), RuntimeError)
    assert results == [0, 1, 2, 4, 5, 6, 7]


async def test_a_learned_limit_is_raised_again_when_batches_end_well() -> None:
    fails = True
    sizes: list[int] = []

    async def handler(items: list[int]) -> list[int]:
        sizes.append(len(items))
        if fails and len(items) > 1:
            raise MemoryError
        return items

    batcher = Batcher(handler, max_items=4)
    await all_of(batcher, range(4))
    fails = False
    for _ in range(150):
        await all_of(batcher, range(4))
    assert sizes[-1] == 4


async def test_a_full_batcher_refuses_as_the_queue_does() -> None:
    gate = Gate()
    batcher = Batcher(gate, max_waiting=2)
    async with anyio.create_task_group() as tasks:
        for item in range(3):
            tasks.start_soon(batcher, item)
            await turns()
        with pytest.raises(QueueFull, match="max_waiting=2") as refused:
            await batcher(3)
        gate.open()
    assert (refused.value.reason, refused.value.status, refused.value.waiting) == ("queue_full", 429, 2)
    assert refused.value.retry_after is not None
    assert refused.value.headers is not None
    assert int(refused.value.headers["Retry-After"]) >= 1


async def test_bl_96_an_item_too_large_for_any_batch_is_refused_by_name() -> None:
    gate = Gate(is_open=True)
    batcher = Batcher(gate, cost=len, rows=lambda item: item.count("\n") + 1, max_bytes=16, max_items=3)
    with pytest.raises(TooLarge, match="max_bytes=16 B") as refused:
        await batcher("x" * 17)
    assert (refused.value.status, refused.value.needed, refused.value.capacity) == (413, 17, 16)
    with pytest.raises(TooLarge, match="max_items=3"):
        await batcher("\n\n\n")
    assert await batcher("x" * 10) == ("result", "x" * 10)


@pytest.mark.parametrize("setting", ["cost", "rows", "key"])
async def test_an_item_that_cannot_be_priced_fails_for_its_caller_alone(setting: str) -> None:
    def broken(item: int) -> int:
        return 1 if item else 1 // item

    options: dict[str, Any] = {"cost": 1, setting: broken}
    batcher = Batcher(Gate(is_open=True), **options)
    results = await all_of(batcher, range(4))
    assert isinstance(results[0], ZeroDivisionError)
    assert results[1:] == [("result", item) for item in range(1, 4)]


@pytest.mark.parametrize(
    ("setting", "value", "error", "text"),
    [
        ("cost", -1, ValueError, "cost must return 0 or more"),
        ("cost", 1.5, TypeError, "cost must return an int"),
        ("cost", True, TypeError, "cost must return an int"),
        ("rows", 0, ValueError, "rows must return 1 or more"),
        ("key", [], TypeError, "unhashable"),
    ],
)
async def test_what_a_callable_returns_is_checked(
    setting: str, value: Any, error: type[Exception], text: str
) -> None:
    options: dict[str, Any] = {"cost": 1, setting: lambda item: value}
    batcher = Batcher(Gate(is_open=True), **options)
    with pytest.raises(error, match=text):
        await batcher(1)


async def test_aclose_runs_what_waits_and_refuses_what_comes() -> None:
    gate = Gate()
    batcher = Batcher(gate, max_wait=1000, max_running=2)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(batcher, 0)
        await turns()
        tasks.start_soon(batcher, 1)
        await turns()
        tasks.start_soon(batcher.aclose)
        await turns()
        assert gate.batches == [[0], [1]], "it waits for no company any more"
        with pytest.raises(Unavailable, match="aclose") as refused:
            await batcher(2)
        assert refused.value.reason == "draining"
        gate.open()
    assert (batcher.waiting, batcher.running) == (0, 0)
    await batcher.aclose()


async def test_no_task_is_left_at_rest_or_after_aclose() -> None:
    def tasks() -> int:
        return len(asyncio.all_tasks()) if asyncio._get_running_loop() is not None else 0

    before = tasks()
    async with Batcher(Gate(is_open=True)) as batcher:
        await all_of(batcher, range(10))
        await turns()
        assert tasks() == before
    assert tasks() == before


async def test_a_handler_that_calls_its_own_batcher_is_refused_before_it_waits_for_itself() -> None:
    async def handler(items: list[int]) -> list[int]:
        return [await batcher(item) for item in items]

    batcher: Batcher[int, int] = Batcher(handler)
    with pytest.raises(RuntimeError, match="called its own batcher"), anyio.fail_after(10):
        await batcher(1)


async def test_something_cancelled_inside_a_handler_is_its_callers_error() -> None:
    async def handler(items: list[int]) -> list[int]:
        if asyncio._get_running_loop() is None:
            raise RuntimeError("something that the handler awaited was cancelled")
        future: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        future.cancel()
        return await future

    batcher = Batcher(handler)
    for _ in range(3):
        errors = await all_of(batcher, range(3))
        assert [type(error) for error in errors] == [RuntimeError] * 3


async def test_an_observer_that_fails_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def observer(event: BatchEvent) -> None:
        raise ZeroDivisionError

    batcher = Batcher(Gate(is_open=True), observer=observer, name="embed")
    assert await batcher(1) == ("result", 1)
    assert "the observer of embed failed" in caplog.text


async def test_an_observer_hears_of_each_batch() -> None:
    events: list[BatchEvent] = []
    batcher = Batcher(
        Gate(is_open=True), cost=len, max_bytes=40, max_padding=1, observer=events.append, name="embed"
    )
    await all_of(batcher, ["x" * 10, "x" * 5, "x" * 5])
    (event,) = events
    assert (event.batcher, event.items, event.rows, event.bytes) == ("embed", 3, 3, 30)
    assert event.padding == pytest.approx(1 / 3)
    assert (event.closed_by, event.outcome) == ("idle", "ok")
    assert event.waited >= 0 <= event.seconds


def test_a_batcher_made_once_serves_one_loop_after_another() -> None:
    batcher = Batcher(Gate(is_open=True))
    for backend in ("asyncio", "trio", "asyncio"):
        assert anyio.run(all_of, batcher, range(5), backend=backend) == [("result", n) for n in range(5)]


def test_a_loop_that_ends_with_work_leaves_no_caller_behind() -> None:
    batcher = Batcher(Gate())

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            for item in range(5):
                tasks.start_soon(batcher, item)
            await turns()
            raise KeyError

    for backend in ("asyncio", "trio"):
        with pytest.raises(BaseExceptionGroup):
            anyio.run(main, backend=backend)
    assert anyio.run(turns, backend="asyncio") is None


def test_two_loops_at_once_are_told_to_take_a_batcher_each() -> None:
    gate = Gate()
    batcher = Batcher(gate)

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(batcher, 1)
            await turns()
            with pytest.raises(RuntimeError, match="another event loop"):
                await anyio.to_thread.run_sync(anyio.run, batcher, 2)
            gate.open()

    anyio.run(main)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"handler": 3}, TypeError, "handler must be a callable"),
        ({"max_items": 0}, ValueError, "max_items must be 1 or more"),
        ({"max_items": True}, TypeError, "max_items must be an int"),
        ({"max_running": 0}, ValueError, "max_running must be 1 or more"),
        ({"max_waiting": 0}, ValueError, "max_waiting must be 1 or more"),
        ({"max_wait": -1}, ValueError, "max_wait must be 0 or more"),
        ({"max_wait": float("inf")}, ValueError, "max_wait must be finite"),
        ({"max_wait": "1"}, TypeError, "max_wait must be a number"),
        ({"max_padding": 2}, ValueError, "max_padding must be from 0 to 1"),
        ({"cost": "much"}, ValueError, "cost='much' is not a size"),
        ({"max_bytes": 5}, TypeError, "cost must be given with max_bytes"),
        ({"cost": 1, "max_bytes": 0}, ValueError, "max_bytes must be above 0"),
        ({"rows": 3}, TypeError, "rows must be a callable"),
        ({"key": "model"}, TypeError, "key must be a callable"),
        ({"observer": 1}, TypeError, "observer must be a callable"),
        ({"admission": object()}, TypeError, "cost must be given with admission"),
    ],
)
def test_bl_97_wrong_settings_are_refused_by_name(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        Batcher(**{"handler": len, **options})


@pytest.mark.parametrize("max_wait", [0, 1e-9])
async def test_bl_97_a_handler_slower_than_max_wait_starves_nobody(max_wait: float) -> None:
    gate = Gate(is_open=True)
    batcher = Batcher(gate, max_items=1, max_wait=max_wait)
    await all_of(batcher, range(20))
    assert sorted(batch[0] for batch in gate.batches) == list(range(20))


async def test_a_plain_endpoint_calls_it_from_its_thread() -> None:
    batcher = Batcher(Gate(is_open=True))

    def endpoint(item: int) -> Any:
        return anyio.from_thread.run(batcher, item)

    assert await anyio.to_thread.run_sync(endpoint, 5) == ("result", 5)


async def test_a_lone_caller_that_comes_back_at_once_is_not_made_to_wait() -> None:
    gate = Gate(is_open=True)
    batcher = Batcher(gate, max_wait=1000)
    with anyio.fail_after(20):
        for item in range(50):
            await batcher(item)
    assert gate.batches == [[item] for item in range(50)]


async def test_those_that_were_answered_together_run_together_again() -> None:
    sizes: list[int] = []

    async def handler(items: list[int]) -> list[int]:
        sizes.append(len(items))
        await anyio.sleep(0.02)
        return items

    batcher = Batcher(handler, max_wait=1000)

    async def caller(late: int) -> None:
        for item in range(12):
            await batcher(item)
            await turns(late)

    async with anyio.create_task_group() as tasks:
        for late in range(8):
            tasks.start_soon(caller, late)
    assert sizes.count(8) >= 9, "of twelve: not seven and one again and again"


async def test_callers_that_never_come_back_are_not_waited_for() -> None:
    sizes: list[int] = []

    async def handler(items: list[int]) -> list[int]:
        sizes.append(len(items))
        await anyio.sleep(0.02)
        return items

    batcher = Batcher(handler, max_items=4, max_wait=1000)
    with anyio.fail_after(20):
        await all_of(batcher, range(10))
        await batcher(1)
    assert sizes == [4, 4, 2, 1]


def test_company_is_waited_for_where_it_came_before_and_only_until_all_are_there() -> None:
    comebacks = Comebacks()
    comebacks.answered(4, 10.0, 2.0)
    assert not comebacks.are_expected(10.0), "nothing is known yet"
    assert [comebacks.came(at) for at in (10.5, 11.0, 12.5)] == [False] * 3
    comebacks.answered(3, 20.0, 2.0)
    assert comebacks.are_expected(21.9), "half of the four came in time"
    assert not comebacks.are_expected(22.0)
    assert [comebacks.came(20.1) for _ in range(3)] == [False, False, True]
    assert not comebacks.are_expected(20.2), "all are back"
    comebacks.answered(1, 30.0, 2.0)
    assert not comebacks.are_expected(30.0), "one alone has no company"
    comebacks.answered(9, 40.0, 2.0)
    comebacks.answered(9, 50.0, 2.0)
    assert not comebacks.are_expected(50.0), "the nine before did not come"


def test_importing_the_helpers_loads_nothing_heavy() -> None:
    code = (
        "import gpu_admission.serving, sys; print({'torch', 'numpy', 'prometheus_client'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"


async def test_a_plain_handler_keeps_its_thread_until_the_batcher_is_closed() -> None:
    threads: list[threading.Thread] = []

    def handler(items: list[int]) -> list[int]:
        threads.append(threading.current_thread())
        return items

    batcher = Batcher(handler, name="kept")
    for item in range(5):
        assert await batcher(item) == item
    assert set(threads) == {threads[0]}
    assert threads[0].name == "kept"
    await batcher.aclose()
    await anyio.to_thread.run_sync(threads[0].join, 20)
    assert not threads[0].is_alive()


async def test_the_thread_of_a_batcher_that_nobody_closes_ends_with_it() -> None:
    threads: list[threading.Thread] = []

    def handler(items: list[int]) -> list[int]:
        threads.append(threading.current_thread())
        return items

    await Batcher(handler)(1)
    await turns()
    gc.collect()
    await anyio.to_thread.run_sync(threads[0].join, 20)
    assert not threads[0].is_alive()


def test_its_thread_ends_with_aclose_in_a_later_loop() -> None:
    threads: list[threading.Thread] = []

    def handler(items: list[int]) -> list[int]:
        threads.append(threading.current_thread())
        return items

    batcher = Batcher(handler)
    assert asyncio.run(batcher(1)) == 1
    asyncio.run(batcher.aclose())
    threads[0].join(20)
    assert not threads[0].is_alive()


async def test_a_handler_that_closes_its_own_batcher_is_refused_before_it_waits_for_itself() -> None:
    async def handler(items: list[int]) -> list[int]:
        await batcher.aclose()
        return items

    batcher = Batcher(handler, name="mine")
    assert "closed its own batcher" in repr(await all_of(batcher, [1]))
    await batcher.aclose()


async def test_something_cancelled_inside_a_plain_handler_fails_its_batch_and_nobody_who_waits() -> None:
    go_on = threading.Event()

    def handler(items: list[int]) -> list[int]:
        go_on.wait(20)
        if items == [1]:
            raise asyncio.CancelledError
        return items

    batcher = Batcher(handler, max_items=1)
    first, second = lambda: batcher(1), lambda: batcher(2)

    async def open_later() -> None:
        await turns()
        go_on.set()

    failed, result, _ = await gather(first, second, open_later)
    assert "something that the handler awaited was cancelled" in repr(failed)
    assert result == 2
    await batcher.aclose()
