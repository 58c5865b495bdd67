"""Instances: each lent to one at a time, given back however that ends, replaced when it is broken."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from gpu_admission import Admission, QueueFull, QueueTimeout, Unavailable, current_lease
from gpu_admission.serving import Instances
from tests.serving.test_batcher import gather, turns
from tests.waiting import until_async

pytestmark = pytest.mark.anyio
BORROWS = 10_000
FAULT = "CUDA error: device-side assert triggered"


class Model:
    """Counts who uses it at once, and in which thread it was made and called."""

    made = 0

    def __init__(self) -> None:
        type(self).made += 1
        self.number = type(self).made
        self.thread = threading.get_ident()
        self.users = 0
        self.most = 0
        self.calls = 0

    def __enter__(self) -> Model:
        self.users += 1
        self.most = max(self.most, self.users)
        return self

    def __exit__(self, *exc: object) -> None:
        self.users -= 1
        self.calls += 1


def thread_of(model: Model) -> tuple[int, int]:
    return model.thread, threading.get_ident()


def fail(model: Model, error: BaseException) -> None:
    raise error


async def test_each_instance_is_made_and_called_in_a_thread_of_its_own() -> None:
    async with Instances(Model, 3) as models:
        assert models.ready == 3
        async with anyio.create_task_group() as tasks:
            threads: list[tuple[int, int]] = []
            for _ in range(3):
                tasks.start_soon(_note_thread, models, threads)
    assert len({made for made, _ in threads}) == 3
    assert all(made == called != threading.get_ident() for made, called in threads)


async def _note_thread(models: Instances[Model], threads: list[tuple[int, int]]) -> None:
    async with models.borrow():
        threads.append(await models.run(thread_of))
        while len(threads) < 3:
            await anyio.lowlevel.checkpoint()


async def test_n_calls_run_at_once_and_no_more() -> None:
    barrier = threading.Barrier(3)
    async with Instances(Model, 3) as models:
        with anyio.fail_after(20):
            numbers = await gather(*[lambda: models.run(lambda model: barrier.wait(10) and model.number)] * 3)
        assert models.ready == 3
    assert not any(isinstance(number, Exception) for number in numbers)


async def test_no_instance_is_used_twice_at_once_over_ten_thousand_random_borrows() -> None:
    dice = random.Random(3)
    models: list[Model] = []

    def factory() -> Model:
        models.append(Model())
        return models[-1]

    def work(model: Model, fate: float) -> None:
        with model:
            if fate < 0.02:
                raise RuntimeError(FAULT)
            if fate < 0.1:
                raise ValueError

    async def borrower(instances: Instances[Model], count: int) -> None:
        for _ in range(count):
            fate = dice.random()
            with anyio.CancelScope() as scope:
                try:
                    if fate < 0.5:
                        await instances.run(work, fate)
                    else:
                        async with instances.borrow() as model:
                            with model:
                                if fate < 0.6:
                                    scope.cancel()
                                await anyio.lowlevel.checkpoint()
                except (RuntimeError, ValueError):
                    pass

    async with Instances(factory, 4, max_waiting=100) as instances:
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(borrower, instances, BORROWS // 20)
        await until_async(lambda: instances.ready == 4)
    assert all(model.most == 1 for model in models if model.calls)
    assert sum(model.calls for model in models) == BORROWS
    assert len(models) > 50, "those that had a fault were replaced"


async def test_a_call_inside_a_borrow_runs_on_the_borrowed_one() -> None:
    async with Instances(Model, 2) as models, models.borrow() as first:
        assert await models.run(lambda model: model) is first
        async with models.borrow() as second:
            assert second is not first
            assert await models.run(lambda model: model) is second
        assert await models.run(lambda model: model) is first


async def test_a_task_that_outlives_the_borrow_gets_one_of_its_own() -> None:
    async with Instances(Model, 2) as models, anyio.create_task_group() as tasks:
        over = anyio.Event()
        seen: list[Model] = []

        async def later() -> None:
            await over.wait()
            async with models.borrow() as other:
                seen.append(await models.run(lambda model: model))
                assert seen == [other]

        async with models.borrow():
            tasks.start_soon(later)
            await turns()
        over.set()


async def test_instances_are_made_at_first_use() -> None:
    made: list[int] = []

    def factory() -> Model:
        made.append(1)
        return Model()

    models = Instances(factory, 2)
    assert made == []
    assert await models.run(lambda model: model.calls) == 0
    await models.aclose()
    assert len(made) == 2


async def test_they_are_made_one_after_the_other_and_warmed_up() -> None:
    at_once, most = 0, 0
    warm: list[Model] = []

    def factory() -> Model:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        time.sleep(0.01)
        at_once -= 1
        return Model()

    async with Instances(factory, 3, warm_up=warm.append) as models:
        assert models.resident_bytes == (None, None, None), "unknown is never zero"
    assert most == 1
    assert len(warm) == 3


@pytest.mark.parametrize("round", range(10))
async def test_bl_98_an_instance_comes_back_whatever_its_call_did(round: int) -> None:
    release = threading.Event()
    resets: list[int] = []

    def reset(model: Model) -> None:
        resets.append(1)
        if len(resets) % 4 == 0:
            raise OSError

    async with Instances(Model, 2, reset=reset, timeout=10) as models:
        with pytest.raises(ValueError, match="bad"):
            await models.run(fail, ValueError("bad"))
        with anyio.move_on_after(0.01) as cancelled:
            await models.run(lambda model: release.wait(10))
        assert cancelled.cancelled_caught
        await models.run(lambda model: None)
        release.set()
        with pytest.raises(SystemExit):
            await models.run(fail, SystemExit())
        with pytest.raises(RuntimeError, match="device-side"):
            await models.run(fail, RuntimeError(FAULT))
        await until_async(lambda: models.ready == 2)
        assert await gather(*[lambda: models.run(lambda model: 1)] * 6) == [1] * 6


async def test_a_cancelled_caller_leaves_at_once_and_its_instance_waits_for_the_thread() -> None:
    release = threading.Event()
    async with Instances(Model, 1) as models:
        with anyio.move_on_after(0.01):
            await models.run(lambda model: release.wait(10))
        await turns()
        assert models.ready == 0
        release.set()
        assert await models.run(lambda model: "next") == "next"


async def test_a_thread_that_works_on_keeps_its_requests_bytes() -> None:
    release, begun = threading.Event(), threading.Event()
    admission = Admission(capacity=100, estimator=1)

    def work(model: Model) -> int:
        lease = current_lease()
        begun.set()
        release.wait(10)
        return lease.bytes if lease else 0

    async with Instances(Model, 1) as models:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks, admission.lease(60):
                tasks.start_soon(models.run, work)
                await anyio.to_thread.run_sync(begun.wait)
                scope.cancel()
                await anyio.lowlevel.checkpoint()
        assert admission.in_use == 60
        release.set()
        await until_async(lambda: admission.in_use == 0)


async def test_a_fault_replaces_the_instance_and_others_serve_meanwhile() -> None:
    built = threading.Event()
    closed: list[Model] = []
    broken: list[Model] = []
    built.set()

    def factory() -> Model:
        assert built.wait(10)
        return Model()

    def break_down(model: Model) -> None:
        broken.append(model)
        raise RuntimeError(FAULT)

    async with Instances(factory, 2, close=closed.append) as models:
        built.clear()
        with pytest.raises(RuntimeError):
            await models.run(break_down)
        for _ in range(5):
            assert await models.run(lambda model: model) is not broken[0]
        built.set()
        await until_async(lambda: models.ready == 2)
        assert closed == broken
    assert len(closed) == 3


async def test_what_counts_as_a_fault_can_be_said() -> None:
    before = Model.made
    async with Instances(Model, 1, is_fault=lambda error: isinstance(error, KeyError)) as models:
        with pytest.raises(KeyError):
            async with models.borrow():
                raise KeyError
        assert await models.run(lambda model: model.number) == before + 2
        with pytest.raises(RuntimeError):
            await models.run(fail, RuntimeError(FAULT))
        assert await models.run(lambda model: model.number) == before + 2


async def test_when_none_can_be_made_borrowers_hear_so_and_do_not_hang() -> None:
    works = False

    def factory() -> Model:
        if not works:
            raise OSError("/secret/weights are missing")
        return Model()

    models = Instances(factory, 2, pause=0.05)
    errors = await gather(*[lambda: models.run(lambda model: 1)] * 4)
    assert all(isinstance(error, Unavailable) for error in errors)
    with pytest.raises(Unavailable, match="making it failed with OSError") as refused:
        await models.run(lambda model: 1)
    assert (refused.value.status, refused.value.reason) == (503, "gpu_unavailable")
    assert "secret" not in refused.value.detail
    assert refused.value.retry_after is not None
    works = True
    with anyio.fail_after(20):
        while True:
            try:
                assert await models.run(lambda model: 1) == 1
                break
            except Unavailable:
                await anyio.sleep(0.02)
    await models.aclose()


async def test_start_raises_what_the_factory_raised() -> None:
    def factory() -> Model:
        raise OSError("no weights")

    with pytest.raises(OSError, match="no weights"):
        async with Instances(factory, 2):
            raise AssertionError
    with pytest.raises(OSError, match="no weights"):
        await Instances(Model, 1, warm_up=lambda model: factory()).start()


async def test_waiting_is_bounded_in_number_and_time_and_served_in_order() -> None:
    order: list[int] = []
    async with Instances(Model, 1, max_waiting=2, timeout=0.05) as models:

        async def borrower(number: int) -> None:
            async with models.borrow():
                order.append(number)

        async with models.borrow():
            with pytest.raises(QueueTimeout, match=r"timeout=0\.05"):
                async with models.borrow():
                    pass
    async with (
        Instances(Model, 1, max_waiting=2) as models,
        anyio.create_task_group() as tasks,
        models.borrow(),
    ):
        for number in range(2):
            tasks.start_soon(borrower, number)
            await turns()
        with pytest.raises(QueueFull, match="max_waiting=2"):
            await models.borrow().__aenter__()
    assert order == [0, 1]


async def test_a_waiter_that_leaves_gives_its_place_up() -> None:
    async with Instances(Model, 1) as models:
        async with models.borrow():
            with anyio.move_on_after(0.01):
                async with models.borrow():
                    raise AssertionError
        assert (models.ready, models.waiting) == (1, 0)


async def test_aclose_waits_for_what_is_lent_and_refuses_the_rest() -> None:
    closed: list[Model] = []
    models = Instances(Model, 2, close=closed.append)
    async with anyio.create_task_group() as tasks, models.borrow():
        lent = await models.run(lambda model: model)
        tasks.start_soon(models.aclose)
        await turns()
        with pytest.raises(Unavailable, match="aclose"):
            await models.borrow().__aenter__()
        assert await models.run(lambda model: model) is lent, "the block goes on to its end"
        assert lent not in closed
    assert len(closed) == 2
    await models.aclose()


async def test_what_is_still_being_made_when_start_is_given_up_is_ended_too() -> None:
    go_on, closed = threading.Event(), threading.Event()

    def factory() -> Model:
        assert go_on.wait(10)
        return Model()

    with anyio.move_on_after(0.01):
        async with Instances(factory, 1, close=lambda model: closed.set()):
            raise AssertionError
    go_on.set()
    assert await anyio.to_thread.run_sync(closed.wait, 10)


def test_no_thread_is_left_after_aclose() -> None:
    async def main() -> None:
        async with Instances(Model, 3, name="left") as models:
            await models.run(lambda model: 1)

    anyio.run(main)
    for thread in threading.enumerate():
        if thread.name.startswith("left"):
            thread.join(10)
            assert not thread.is_alive()


def test_instances_made_once_serve_one_loop_after_another() -> None:
    models = Instances(Model, 1)

    async def number() -> int:
        return await models.run(lambda model: model.number)

    assert len({anyio.run(number, backend=backend) for backend in ("asyncio", "trio", "asyncio")}) == 1


def test_results_are_not_kept_alive_by_the_thread() -> None:
    class Large:
        pass

    async def main() -> None:
        async with Instances(Model, 1) as models:
            await models.run(lambda model: Large())
            gc.collect()
            assert not [thing for thing in gc.get_objects() if type(thing) is Large]

    anyio.run(main)


class FakeStream:
    def __init__(self, log: list[str], device: int) -> None:
        self.log, self.device = log, device

    def synchronize(self) -> None:
        self.log.append(f"synchronize cuda:{self.device}")


class FakeCuda:
    """torch.cuda, with two devices; the current one and its stream belong to the thread."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.here = threading.local()
        self.allocated = {0: 100, 1: 100}

    def is_available(self) -> bool:
        return True

    is_initialized = is_available

    def device_count(self) -> int:
        return 2

    def set_device(self, index: int) -> None:
        self.here.device = index

    def Stream(self) -> FakeStream:  # noqa: N802
        return FakeStream(self.log, self.here.device)

    def set_stream(self, stream: FakeStream) -> None:
        self.here.stream = stream

    def memory_stats_as_nested_dict(self, index: int) -> dict[str, Any]:
        count = {"all": {"current": self.allocated[index]}}
        return {"reserved_bytes": count, "active_bytes": count}

    def load(self, size: int) -> int:
        self.allocated[self.here.device] += size
        return int(self.here.device)


async def test_on_cuda_each_thread_has_a_device_and_a_stream_and_memory_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda = FakeCuda()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    async with Instances(lambda: cuda.load(7), 3) as models:
        assert models.resident_bytes == (7, 7, 7)
        cuda.log.clear()
        streams: set[int] = set()

        def note(model: int) -> int:
            streams.add(id(cuda.here.stream))
            return model

        async with models.borrow() as first, models.borrow() as second, models.borrow() as third:
            assert [first, second, third] == [0, 1, 0]
            assert await models.run(note) == 0
        assert await models.run(note) == 0
        assert cuda.log == ["synchronize cuda:0"] * 2
        assert len(streams) == 2


@pytest.mark.gpu
async def test_on_a_real_card_instances_overlap_and_their_weights_are_measured() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")

    def load() -> Any:
        return torch.nn.Linear(4096, 4096, bias=False).cuda()

    def forward(model: Any, rows: int) -> float:
        with torch.inference_mode():
            assert torch.cuda.current_stream() != torch.cuda.default_stream()
            return float(model(torch.ones(rows, 4096, device="cuda")).sum().isfinite())

    async with Instances(load, 2, devices=["cuda:0"], warm_up=lambda model: forward(model, 1)) as models:
        assert all(size is not None and size >= 4096 * 4096 * 4 for size in models.resident_bytes)
        assert await gather(*[lambda: models.run(forward, 64)] * 20) == [1.0] * 20


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"factory": 3}, TypeError, "factory must be a callable"),
        ({"n": 0}, ValueError, "n must be 1 or more"),
        ({"n": 1.5}, TypeError, "n must be an int"),
        ({"devices": "cuda:0"}, TypeError, "devices must be a list of names"),
        ({"devices": []}, TypeError, "devices must be a list of names"),
        ({"devices": ["gpu"]}, ValueError, "devices must be 'cpu' or 'cuda:N'"),
        ({"warm_up": 1}, TypeError, "warm_up must be a callable"),
        ({"is_fault": 1}, TypeError, "is_fault must be a callable"),
        ({"max_waiting": -1}, ValueError, "max_waiting must be 0 or more"),
        ({"timeout": -1}, ValueError, "timeout must be 0 or more"),
        ({"pause": "1"}, TypeError, "pause must be a number"),
    ],
)
def test_wrong_settings_are_refused_by_name(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        Instances(**{"factory": Model, "n": 1, **options})


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_borrower_that_is_cancelled_as_its_turn_comes_does_not_keep_aclose_waiting() -> None:
    models = Instances(Model, 1)

    async def use() -> None:
        async with models.borrow():
            raise AssertionError

    async with models.borrow():
        waiting = asyncio.create_task(use())
        await turns()
    waiting.cancel()
    with anyio.fail_after(20):
        await models.aclose()


async def test_the_threads_of_instances_that_nobody_closes_end_with_them() -> None:
    async def used() -> threading.Thread:
        models = Instances(Model, 1)
        return await models.run(lambda model: threading.current_thread())

    thread = await used()
    await turns()
    gc.collect()
    await anyio.to_thread.run_sync(thread.join, 20)
    assert not thread.is_alive()
