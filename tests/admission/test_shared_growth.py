"""Leases that grow on a budget whose answer takes its time, as on a Redis server: delivered by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread
import pytest

from gpu_admission import Admission, GPUAdmission, Lease, QueueFull, Rejected, Unavailable
from gpu_admission.budget.ticket import Ticket
from gpu_admission.runtime.answer import Answer
from gpu_admission.shared.memory import MemoryHub, MemoryLog
from gpu_admission.shared.process import boot_seconds
from gpu_admission.testing import Call, StreamedCost, settle, until, working
from gpu_admission.types import Estimate

pytestmark = pytest.mark.anyio


class Server:
    """A budget of 100 bytes: 10 are held by ``lease`` here, ``taken`` by another process."""

    def __init__(self, taken: int) -> None:
        self.hub = MemoryHub(clock=boot_seconds, knows_deaths=True)
        self.log, self.others = MemoryLog(self.hub), MemoryLog(self.hub)
        settings: dict[str, Any] = {"capacity": 100, "estimator": StreamedCost()}
        self.admission = Admission(shared=self.log, **settings)
        self.other = Admission(shared=self.others, **settings)
        self.taken = taken
        self.lease: Lease

    def deliver(self) -> None:
        while self.log.deliver() or self.others.deliver():
            """What one learns may make it say something."""

    @property
    def held(self) -> int:
        """The bytes that this process holds, as the others see it."""
        self.deliver()
        return self.other.in_use - self.taken

    @property
    def peak(self) -> int:
        return self.other.locked.ledger.peak

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        async with self.admission, self.other, self.other.lease(self.taken or 1) as theirs:
            self.taken = theirs.bytes
            async with self.admission.lease(10) as self.lease:
                self.hub.instant = False
                self.deliver()
                try:
                    yield
                finally:
                    self.deliver()
                    self.hub.instant = True


@asynccontextmanager
async def server(taken: int = 0) -> AsyncIterator[Server]:
    made = Server(taken)
    async with made.run():
        yield made


class Block:
    """A block of ``size`` bytes in a task of its own: entered, and left when the test says so."""

    def __init__(self, admission: Admission, size: int) -> None:
        self.admission, self.size = admission, size
        self.may_leave = anyio.Event()
        self.is_in = False
        self.refused: Rejected | None = None
        self.scope = anyio.CancelScope()

    async def run(self) -> None:
        with self.scope:
            try:
                async with self.admission.lease(self.size):
                    self.is_in = True
                    await self.may_leave.wait()
            except Rejected as rejected:
                self.refused = rejected

    async def begin(self, group: anyio.abc.TaskGroup) -> Block:
        group.start_soon(self.run)
        await settle()
        return self


async def test_the_loop_runs_on_until_the_budget_has_answered() -> None:
    async with server() as budget, anyio.create_task_group() as group:
        block = await Block(budget.admission, 60).begin(group)
        assert not block.is_in, "and this task runs"
        assert budget.held == 60
        await settle()
        assert block.is_in
        assert budget.lease.bytes == 60
        block.may_leave.set()
        await settle()
        assert budget.held == 10


async def test_a_block_that_needs_no_more_does_not_ask() -> None:
    async with server() as budget, anyio.create_task_group() as group:
        block = await Block(budget.admission, 10).begin(group)
        assert block.is_in
        block.may_leave.set()


async def test_growth_that_does_not_fit_is_refused_as_soon_as_that_is_known() -> None:
    async with server(taken=50) as budget, anyio.create_task_group() as group:
        block = await Block(budget.admission, 60).begin(group)
        budget.deliver()
        await settle()
        assert isinstance(block.refused, QueueFull)
        assert budget.held == budget.lease.bytes == 10


@pytest.mark.parametrize("is_read", [False, True], ids=["before", "after"])
async def test_a_task_cancelled_before_or_after_its_growth_was_read_leaves_nothing_grown(
    is_read: bool,
) -> None:
    async with server() as budget, anyio.create_task_group() as group:
        block = await Block(budget.admission, 60).begin(group)
        if is_read:
            budget.deliver()
            assert budget.lease.bytes == 60
        block.scope.cancel()
        await settle()
        assert not block.is_in
        assert budget.held == budget.lease.bytes == 10


async def test_a_budget_that_does_not_answer_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_admission.admission.ending._ROUND_TRIP", 0.01)
    async with server() as budget:
        with pytest.raises(Unavailable, match="did not answer") as refused:
            async with budget.admission.lease(60):
                pass
        assert (refused.value.reason, refused.value.status) == ("budget_unreachable", 503)
        assert budget.held == budget.lease.bytes == 10


async def test_a_budget_that_goes_away_meanwhile_is_unreachable_at_once() -> None:
    async with server() as budget, anyio.create_task_group() as group:
        block = await Block(budget.admission, 60).begin(group)
        budget.log.cut()
        await settle()
        assert block.refused is not None
        assert block.refused.reason == "budget_unreachable"
        late = await Block(budget.admission, 60).begin(group)
        assert late.refused is not None
        assert late.refused.reason == "budget_unreachable"
        budget.log.mend()
        assert budget.held == budget.lease.bytes == 10


@pytest.mark.parametrize("taken", [0, 50], ids=["fits in what is known", "does not fit"])
async def test_while_the_budget_begins_anew_growth_is_refused_as_a_new_request_is(taken: int) -> None:
    async with server(taken) as budget:
        budget.hub.instant = True
        budget.hub.lose()
        for each in (budget.admission, budget.other, budget.admission):
            each.locked.catch_up()
        with pytest.raises(Unavailable, match="begins anew and grants nothing for another") as asked:
            await budget.admission.entrance.acquire(Estimate(60), timeout=0)
        with pytest.raises(Unavailable, match="begins anew and grants nothing for another") as grown:
            async with budget.admission.lease(60):
                pass
        with pytest.raises(Unavailable, match="begins anew"):
            budget.lease.resize(60)
        assert (grown.value.reason, grown.value.retry_after) == (
            "budget_unreachable",
            asked.value.retry_after,
        )
        assert "begins anew" in budget.admission.entrance.no_more(60, 50, 0, 0).detail
        assert budget.other.in_use == budget.taken + 10


async def test_what_piles_up_is_bounded_for_growth_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async with server() as budget:
        with monkeypatch.context() as patch:
            patch.setattr("gpu_admission.shared.outbox.MOST_UNSAID", 0)
            answer = budget.admission.locked.grow(budget.lease.ticket, 60)
        assert answer.is_given
        assert answer.says is None


async def test_a_request_inside_another_waits_for_the_answer_without_holding_up_the_loop() -> None:
    async with server() as budget, anyio.create_task_group() as group:
        call = Call(GPUAdmission(working, admission=budget.admission), cost=60)
        group.start_soon(call.run)
        await settle()
        assert not call.started.is_set()
        budget.deliver()
        await settle()
        assert call.started.is_set()
        assert budget.lease.bytes == 60
        call.finish()
        await call.done.wait()
        assert budget.held == 10


async def test_blocks_side_by_side_get_their_own_answers() -> None:
    async with server(taken=50) as budget, anyio.create_task_group() as group:
        small, large = [await Block(budget.admission, size).begin(group) for size in (20, 90)]
        budget.deliver()
        await settle()
        assert small.is_in
        assert large.refused is not None
        assert budget.held == 20
        small.may_leave.set()
        await settle()
        assert (budget.held, budget.peak <= 100) == (10, True)


@pytest.mark.parametrize("ends", ["left", "cancelled"])
async def test_one_that_ends_while_another_asks_brings_nothing_in_for_it(ends: str) -> None:
    async with server(taken=50) as budget, anyio.create_task_group() as group:
        first = await Block(budget.admission, 20).begin(group)
        if ends == "left":
            budget.deliver()
            await settle()
        asking = await Block(budget.admission, 90).begin(group)
        first.may_leave.set() if ends == "left" else first.scope.cancel()
        await settle()
        budget.deliver()
        await settle()
        assert asking.refused is not None
        assert (budget.held, budget.peak <= 100) == (10, True)


async def test_one_that_ends_while_another_is_let_in_takes_nothing_from_it() -> None:
    async with server() as budget, anyio.create_task_group() as group:
        first = await Block(budget.admission, 20).begin(group)
        second = await Block(budget.admission, 60).begin(group)
        first.scope.cancel()
        await settle()
        budget.deliver()
        await settle()
        assert second.is_in
        assert budget.held == 60
        second.may_leave.set()
        await settle()
        assert budget.held == 10


@pytest.mark.parametrize(("size", "held"), [(40, 40), (90, 0)])
async def test_a_block_that_asks_when_its_request_ends_is_held_only_if_it_fits(size: int, held: int) -> None:
    async with server(taken=50) as budget, anyio.create_task_group() as group:
        block = await Block(budget.admission, size).begin(group)
        budget.lease.release()
        budget.deliver()
        await settle()
        assert block.is_in is bool(held)
        assert (budget.held, budget.peak <= 100) == (held, True)
        block.may_leave.set()
        await settle()
        assert budget.held == 0


async def test_what_others_took_between_two_blocks_is_not_taken_back() -> None:
    async with server(taken=50) as budget, anyio.create_task_group() as group:
        first = await Block(budget.admission, 50).begin(group)
        budget.deliver()
        await settle()
        first.may_leave.set()
        await settle()
        budget.others.deliver()
        assert budget.other.in_use == 60
        budget.other.locked.ask(theirs := Ticket(40))
        second = await Block(budget.admission, 50).begin(group)
        assert not second.is_in
        budget.deliver()
        await settle()
        assert isinstance(second.refused, QueueFull)
        assert (budget.other.in_use, budget.peak) == (100, 100)
        budget.other.locked.release(theirs)


# plain calls, which wait where they are


async def _in_thread(budget: Server, work: Callable[[], object], *, answers: bool) -> object:
    """What ``work`` raised in a thread, in this context, while the test delivers."""
    raised: list[object] = []

    def run() -> None:
        try:
            work()
        except Rejected as rejected:
            raised.append(rejected.reason)

    said = len(budget.hub.entries)
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.to_thread.run_sync, run)
        if answers:
            await until(lambda: len(budget.hub.entries) > said)
            budget.deliver()
    return raised


def _block(budget: Server, size: int) -> None:
    with budget.admission.lease(size) as lease:
        assert lease.bytes == size


def _resize(budget: Server, size: int) -> None:
    budget.lease.resize(size)
    assert budget.lease.bytes == size
    budget.lease.resize(10)


@pytest.mark.parametrize("work", [_block, _resize])
async def test_a_thread_waits_for_the_answer_where_it_is(work: Callable[[Server, int], None]) -> None:
    async with server(taken=50) as budget:
        assert await _in_thread(budget, partial(work, budget, 40), answers=True) == []
        assert budget.held == 10
        assert await _in_thread(budget, partial(work, budget, 90), answers=True) == ["queue_full"]
        assert budget.held == 10


@pytest.mark.parametrize("work", [_block, _resize])
async def test_a_thread_whose_budget_does_not_answer_has_not_grown(
    work: Callable[[Server, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_admission.admission.ending._ROUND_TRIP", 0.01)
    async with server() as budget:
        assert await _in_thread(budget, partial(work, budget, 60), answers=False) == ["budget_unreachable"]
        assert budget.held == 10


@pytest.mark.parametrize("work", [_block, _resize])
async def test_a_plain_call_in_the_loop_waits_only_for_a_moment(
    work: Callable[[Server, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_admission.admission.ending._ROUND_TRIP", 1e9)
    async with server() as budget:
        with pytest.raises(Unavailable, match="did not answer"):
            work(budget, 60)
        assert budget.held == budget.lease.bytes == 10


async def test_an_answer_that_comes_just_before_the_wait_is_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with server() as budget:
        wait_for = Answer._is_to_call

        def late(self: Answer, call: Callable[[], object]) -> bool:
            budget.deliver()
            return wait_for(self, call)

        monkeypatch.setattr(Answer, "_is_to_call", late)
        async with budget.admission.lease(60) as lease:
            assert lease.bytes == 60
        _block(budget, 60)


@pytest.mark.parametrize("work", [_block, _resize])
async def test_a_thread_whose_wait_is_interrupted_has_not_grown(
    work: Callable[[Server, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: object, seconds: float) -> bool:
        raise KeyboardInterrupt

    async with server() as budget:
        monkeypatch.setattr("gpu_admission.runtime.answer.Answer.wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            work(budget, 60)
        assert budget.held == budget.lease.bytes == 10
