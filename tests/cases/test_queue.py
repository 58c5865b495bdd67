"""The queue: who starts, who waits, who leaves, and that nothing is lost on the way: BL-39 to BL-50."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from gpu_admission import Lane
from gpu_admission.budget.ledger import Ledger
from gpu_admission.budget.ticket import State, Ticket
from gpu_admission.types import Receive, Scope, Send
from tests.cases.harness import (
    Call,
    Scene,
    StreamedCost,
    chunks,
    cost,
    read_body,
    scenario,
    settle,
    working,
)

pytestmark = pytest.mark.anyio


# BL-39: grants that must arrive


async def test_bl_39_a_waiter_that_a_newcomer_lets_start_is_woken() -> None:
    """Who may pass a large head depends on what is asked lately, so an arrival can let others start."""
    async with scenario(max_waiting=1000, max_bypass=1000) as scene:
        for _ in range(60):
            await scene.run(cost=5)
        holder = await scene.start(cost=60)
        head = await scene.start(cost=90)
        earlier = await scene.start(cost=35)
        assert not earlier.reached_app
        newcomers = [scene.call(cost=50) for _ in range(80)]
        for call in newcomers:
            scene.group.start_soon(call.run)
        await settle()
        assert scene.in_use == 95
        assert earlier.started.is_set()
        for call in (holder, head, earlier, *newcomers):
            call.finish()
        with anyio.fail_after(10):
            await head.done.wait()


async def test_bl_40_a_head_whose_client_leaves_lets_those_behind_it_start() -> None:
    async with scenario(max_bypass=0) as scene:
        holder = await scene.start(cost=60)
        head = await scene.start(cost=80)
        behind = await scene.start(cost=30)
        assert not behind.reached_app
        head.hang_up()
        await behind.started.wait()
        assert scene.in_use == 90
        for call in (holder, behind):
            call.finish()


# BL-43: the large and the small


class Trace:
    """A ledger of 100 bytes that a test moves through time."""

    def __init__(self, **settings: Any) -> None:
        self.ledger = Ledger([100], **settings)
        self.now = 0.0
        self.running: list[Ticket] = []

    def ask(self, size: int, lane: int = 0) -> Ticket:
        ticket = Ticket(size, lane)
        self._started(self.ledger.request(ticket, self.now))
        return ticket

    def end(self, ticket: Ticket) -> None:
        self.running.remove(ticket)
        self._started(self.ledger.release(ticket, self.now))

    def _started(self, granted: Sequence[Ticket]) -> None:
        self.running += granted
        assert sum(ticket.bytes for ticket in self.running) == self.ledger.in_use <= 100


@pytest.mark.parametrize(
    ("settings", "most"), [({}, 32), ({"max_bypass": 4}, 4), ({"max_bypass": 0}, 0)], ids=str
)
def test_bl_43_a_stream_of_small_ones_passes_a_large_one_only_so_often(
    settings: dict[str, int], most: int
) -> None:
    trace = Trace(**settings)
    for _ in range(20):
        trace.ask(5)
    large = trace.ask(90)
    passed = 0
    for _ in range(1000):
        trace.now += 0.01
        passed += trace.ask(5).state is State.GRANTED
        if trace.running:
            trace.end(trace.running[0])
        passed += sum(ticket.arrived > large.arrived for ticket in trace.running[-1:])
        if large.state is State.GRANTED:
            break
    assert large.state is State.GRANTED
    assert large.passed <= most


def test_bl_43_a_large_one_waits_at_the_head_no_longer_than_its_bound() -> None:
    trace = Trace(max_bypass=10**6, max_bypass_wait=10.0)
    for _ in range(20):
        trace.ask(5)
    large = trace.ask(90)
    while large.state is not State.GRANTED:
        trace.now += 0.05
        trace.ask(5)
        trace.end(trace.running[0])
        assert trace.now < 10.0 + 20 * 0.05 + 1
    assert large.granted_at - large.arrived >= 10.0


def test_bl_43_small_ones_behind_a_large_head_use_the_gap_that_it_leaves() -> None:
    trace = Trace()
    trace.ask(60)
    large = trace.ask(90)
    small = [trace.ask(5) for _ in range(10)]
    started = [ticket for ticket in small if ticket.state is State.GRANTED]
    assert len(started) == 8, "40 bytes were free"
    assert large.state is State.WAITING
    assert large.passed == 8


# BL-44: priorities

LANES = (Lane("low"), Lane("high", priority=1))
LOW, HIGH = 0, 1


def test_bl_44_a_stream_of_high_priority_does_not_starve_a_low_one() -> None:
    trace = Trace(lanes=LANES, max_waiting=1000)
    for _ in range(10):
        trace.ask(10, HIGH)
    low = trace.ask(10, LOW)
    passed = 0
    while low.state is State.WAITING:
        trace.now += 0.1
        trace.ask(10, HIGH)
        trace.end(trace.running[0])
        passed += 1
        assert passed <= 33
    assert low.passed <= 32


def test_bl_44_a_try_of_low_priority_does_not_jump_a_queued_high_one() -> None:
    trace = Trace(lanes=(Lane("low", max_waiting=0), Lane("high", priority=1)), max_bypass=0)
    trace.ask(60, LOW)
    high = trace.ask(80, HIGH)
    attempt = trace.ask(30, LOW)
    assert attempt.state is State.REFUSED
    assert high.state is State.WAITING


# BL-46: equals, and odd priorities


def test_bl_46_equals_start_in_the_order_in_which_they_came() -> None:
    trace = Trace()
    holder = trace.ask(100)
    waiters = [trace.ask(100) for _ in range(100)]
    assert holder.state is State.GRANTED
    for waiter in waiters:
        (running,) = trace.running
        trace.end(running)
        assert trace.running == [waiter]


@pytest.mark.parametrize("priority", [None, True, 1.0, "5", [1]])
def test_bl_46_a_priority_that_is_no_whole_number_is_refused_clearly(priority: Any) -> None:
    with pytest.raises(TypeError, match=r"lane 'x': priority must be an int"):
        Lane("x", priority=priority)


def test_bl_46_a_huge_priority_is_only_a_number() -> None:
    trace = Trace(lanes=(Lane("low", priority=-(10**30)), Lane("high", priority=10**30)))
    holder = trace.ask(100)
    low, high = trace.ask(100, LOW), trace.ask(100, HIGH)
    trace.end(holder)
    assert (low.state, high.state) == (State.WAITING, State.GRANTED)


@pytest.mark.parametrize(
    "key",
    [{"user": 1}, ["a"], ("a", []), None, float("nan"), 7, b"bytes"],
    ids=lambda key: type(key).__name__,
)
async def test_bl_46_waiters_that_carry_any_value_as_their_flow_start_in_order(key: Any) -> None:
    started: list[int] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        started.append(scope["call"].number)
        await working(scope, receive, send)

    async with scenario(app, flow=lambda info: key, max_waiting_per_flow=100) as scene:
        calls = []
        for number in range(6):
            call = scene.call(b"question", cost=100)
            call.number = number  # type: ignore[attr-defined]
            scene.group.start_soon(call.run)
            calls.append(call)
            await settle()
        for call in calls:
            call.finish()
        for call in calls:
            await call.done.wait()
            assert call.status == 200
    assert started == list(range(6))


# BL-50: clients that leave at any point


async def careful(scope: Scope, receive: Receive, send: Send) -> None:
    """Reads, thinks, streams three chunks, and stays a little after the last."""
    call: Call = scope["call"]
    turn = anyio.lowlevel.checkpoint
    await read_body(receive)
    await turn()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for number in range(3):
        await turn()
        await send({"type": "http.response.body", "body": b"%d" % number, "more_body": number < 2})
    await turn()
    call.started.set()


@pytest.mark.parametrize("reads_first", [True, False])
async def test_bl_50_a_thousand_clients_that_leave_at_random_points_leave_nothing_behind(
    reads_first: bool,
) -> None:
    dice = random.Random(50)
    estimator = cost if reads_first else StreamedCost()
    async with scenario(careful, estimator=estimator, max_waiting=3) as scene:
        for _ in range(50):
            calls = [_random_call(scene, dice) for _ in range(20)]
            for call in calls:
                scene.group.start_soon(call.run)
            await _drop_at_random_points(calls, dice)
            for call in calls:
                await call.done.wait()
                assert call.error is None or isinstance(call.error, OSError)
            scene.check_rest()
            scene.calls.clear()
    kinds = Counter(event.kind for event in scene.events)
    assert kinds["admitted"] == kinds["released"]
    assert min(kinds["admitted"], kinds["disconnected"], kinds["refused"]) > 10, kinds


def _random_call(scene: Scene, dice: random.Random) -> Call:
    call = scene.call(cost=dice.choice((10, 50, 100)), messages=chunks(b"1", complete=False))
    if dice.random() < 0.3:
        call.send_fails_at = dice.randrange(5)
    return call


async def _drop_at_random_points(calls: list[Call], dice: random.Random) -> None:
    """The rest of each body comes when it comes; some clients go, and some tasks are cancelled."""
    steps: list[Callable[[], None]] = [partial(call.feed, *chunks(b"2")) for call in calls]
    steps += [call.hang_up for call in dice.sample(calls, 8)]
    steps += [call.cancel for call in dice.sample(calls, 4)]
    dice.shuffle(steps)
    for step in steps:
        step()
        for _ in range(dice.randrange(4)):
            await anyio.lowlevel.checkpoint()
