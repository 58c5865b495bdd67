"""The virtual clock: arrivals, ends and lost patience, and that the real ledger decides."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_admission.budget.lanes import Lane
from gpu_admission.budget.ledger import Ledger
from gpu_admission.budget.ticket import State, Ticket
from gpu_admission.planning.replay import NEVER, Replay, Replayed
from gpu_admission.planning.service import Card
from gpu_admission.planning.trace import Trace

CARD = Card(100, 0.01)


def trace(*rows: tuple[float, int, float]) -> Trace:
    """Rows of (arrival, bytes, seconds alone)."""
    return Trace(
        arrivals=[arrival for arrival, _, _ in rows],
        sizes=[size for _, size, _ in rows],
        seconds=[seconds for _, _, seconds in rows],
    )


def replayed(*rows: tuple[float, int, float], card: Card = CARD, patience: float = 60.0) -> Replayed:
    return Replay(trace(*rows), Ledger([card.capacity], max_bypass=0), card, patience=patience).run()


def test_one_that_fits_starts_at_once() -> None:
    run = replayed((3.0, 50, 1.0))
    assert run.waits == [0.0]
    assert run.done == b"\x01"
    assert math.isnan(run.forecasts[0])


def test_a_request_takes_longer_while_more_is_held() -> None:
    """Alone 3 s of work at 1.5 x, from 1.5 s on beside another at 2 x; the last one tells when both end."""
    run = replayed((0.0, 50, 3.0), (1.5, 50, 3.0), (2.0, 50, 1.0), (2.0, 50, 1.0))
    first_end = 1.5 + (3.0 - 1.0) * 2.0
    second_end = first_end + (3.0 - 2.0) * 2.0
    assert run.waits == pytest.approx([0.0, 0.0, first_end - 2.0, second_end - 2.0])


def test_who_has_waited_as_long_as_it_may_gives_up_and_lets_the_next_start() -> None:
    run = replayed((0.0, 60, 100.0), (1.0, 90, 1.0), (2.0, 40, 1.0), patience=10.0)
    assert run.waits == [0.0, NEVER, 9.0]
    assert list(run.done) == [1, 0, 1]


def test_who_finds_the_queue_full_is_refused() -> None:
    rows = trace((0.0, 100, 5.0), (1.0, 100, 5.0), (2.0, 100, 5.0), (3.0, 101, 5.0))
    run = Replay(rows, Ledger([100], max_waiting=1), CARD, patience=60.0).run()
    assert run.refused == 2
    assert list(run.done) == [1, 1, 0, 0]


def test_whoever_is_let_in_past_the_card_runs_out_of_memory_and_fails() -> None:
    """A semaphore of two counts no bytes. The one that fails makes room for the next in line."""
    rows = trace((0.0, 60, 4.0), (1.0, 60, 4.0), (1.0, 40, 4.0))
    run = Replay(rows, Ledger([2**62], max_running=2), CARD, patience=60.0).run()
    assert run.out_of_memory == 1
    assert run.waits == [0.0, NEVER, 0.0]


def test_what_requests_really_take_may_differ_from_what_they_are_charged() -> None:
    rows = trace((0.0, 50, 4.0), (1.0, 50, 4.0))
    run = Replay(rows, Ledger([100]), CARD, patience=60.0, sizes=[50, 51]).run()
    assert run.out_of_memory == 1
    assert list(run.done) == [1, 0]


def test_many_that_fail_one_after_the_other_are_no_deep_recursion() -> None:
    rows = trace((0.0, 60, 1000.0), *((1.0, 60, 1.0) for _ in range(3000)))
    run = Replay(rows, Ledger([2**62], max_running=2, max_waiting=10**6), CARD, patience=60.0).run()
    assert run.out_of_memory == 3000


def test_held_byte_seconds_are_counted_until_the_last_arrival() -> None:
    run = replayed((0.0, 50, 100.0), (4.0, 10, 1.0))
    assert run.byte_seconds == pytest.approx(50 * 4)


def test_those_that_wait_are_told_the_ledgers_forecast() -> None:
    rows = [(float(n), 50, 4.0) for n in range(12)]
    run = replayed(*rows, card=Card(100))
    told = [forecast for forecast in run.forecasts if not math.isnan(forecast)]
    assert len(told) >= 3
    assert run.forecasts[-1] == pytest.approx(run.waits[-1], abs=4.0)


def test_lanes_and_flows_are_the_ledgers_own() -> None:
    rows = trace(*[(0.0, 100, 1.0)] * 5)
    lanes = Ledger([100], lanes=(Lane("low"), Lane("high", priority=1)))
    run = Replay(rows, lanes, Card(100), patience=60.0, lanes=[0, 0, 0, 1, 1]).run()
    assert run.waits == [0.0, 3.0, 4.0, 1.0, 2.0]
    run = Replay(rows, Ledger([100]), Card(100), patience=60.0, flows=["a", "a", "a", "a", "b"]).run()
    assert run.waits[4] < run.waits[3]


class Naive:
    """The same replay with the work of each request counted down one by one."""

    def __init__(self, rows: Trace, ledger: Ledger, card: Card, patience: float) -> None:
        self.rows, self.ledger, self.card, self.patience = rows, ledger, card, patience
        self.left: dict[Ticket, float] = {}
        self.waiting: list[Ticket] = []
        self.waits = [NEVER] * len(rows)
        self.now = 0.0

    def run(self) -> Sequence[float]:
        for index, arrival in enumerate(self.rows.arrivals):
            self.pass_until(arrival)
            ticket = Ticket(self.rows.sizes[index])
            ticket.waiter = index
            granted = self.ledger.request(ticket, arrival)
            self.waiting.append(ticket)
            self.start(granted)
        self.pass_until(10_000.0)
        return self.waits

    def pass_until(self, until: float) -> None:
        while True:
            slow = self.card.slowdown(sum(ticket.bytes for ticket in self.left))
            ends = sorted(
                (self.now + left * slow, ticket.waiter, ticket) for ticket, left in self.left.items()
            )
            due = [(self.rows.arrivals[t.waiter] + self.patience, t) for t in self.still_waiting()]
            end = ends[0][0] if ends else NEVER
            last = due[0][0] if due else NEVER
            at = min(end, last, until)
            for ticket in self.left:
                self.left[ticket] -= (at - self.now) / slow
            self.now = at
            if end <= at and end <= last:
                del self.left[ends[0][2]]
                self.start(self.ledger.release(ends[0][2], at))
            elif last <= at:
                self.start(self.ledger.release(due[0][1], at))
            else:
                return

    def still_waiting(self) -> Iterator[Ticket]:
        return (ticket for ticket in self.waiting if ticket.state is State.WAITING)

    def start(self, granted: Sequence[Ticket]) -> None:
        for ticket in granted:
            self.waits[ticket.waiter] = self.now - self.rows.arrivals[ticket.waiter]
            self.left[ticket] = self.rows.seconds[ticket.waiter]


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 30), st.sampled_from([0.0, 0.013]))
def test_the_shared_pace_gives_what_counting_each_down_gives(seed: int, count: int, drag: float) -> None:
    """Drawn times, so that no two things happen at one instant, where rounding would decide."""
    draw = random.Random(seed)
    arrivals = sorted(draw.uniform(0, 30) for _ in range(count))
    asked = trace(*((arrival, draw.randint(1, 100), draw.uniform(0.1, 15)) for arrival in arrivals))
    card, patience = Card(100, drag), 7.3
    fast = Replay(asked, Ledger([100]), card, patience=patience).run()
    assert fast.waits == pytest.approx(Naive(asked, Ledger([100]), card, patience).run(), abs=1e-6)
