"""The rules of who may start, one by one, and what leaving, growing and shrinking change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gpu_admission.budget.lanes import Lane
from gpu_admission.budget.ledger import Ledger
from gpu_admission.budget.recentsizes import SmallSizes
from gpu_admission.budget.ticket import State, Ticket


class Bench:
    """A ledger of 100 bytes, and tickets by name: ``ask("a", 60)``, ``end("a")``."""

    def __init__(self, *lanes: Lane, capacities: Sequence[int] = (100,), **options: Any) -> None:
        options = {"max_bypass_wait": 1e9, **options}
        if lanes:
            options["lanes"] = lanes
        self.ledger = Ledger(capacities, **options)
        self.names = {lane.name: index for index, lane in enumerate(lanes)}
        self.tickets: dict[str, Ticket] = {}
        self.now = 0.0

    def ask(self, name: str, size: int, lane: str = "", flow: object = None) -> State:
        self.now += 1e-6
        ticket = self.tickets[name] = Ticket(size, self.names.get(lane, 0), flow)
        self.ledger.request(ticket, self.now)
        return ticket.state

    def end(self, name: str) -> set[str]:
        return self.named(self.ledger.release(self.tickets[name], self.now))

    def named(self, tickets: Sequence[Ticket]) -> set[str]:
        assert len(set(tickets)) == len(tickets)
        return {name for name, ticket in self.tickets.items() if ticket in tickets}

    def in_state(self, state: State) -> set[str]:
        return {name for name, ticket in self.tickets.items() if ticket.state is state}

    @property
    def running(self) -> set[str]:
        return self.in_state(State.GRANTED)

    @property
    def waiting(self) -> set[str]:
        return self.in_state(State.WAITING)


# one lane


def test_it_grants_what_fits_and_makes_the_rest_wait() -> None:
    bench = Bench()
    assert [bench.ask("a", 60), bench.ask("b", 40), bench.ask("c", 1)] == [
        State.GRANTED,
        State.GRANTED,
        State.WAITING,
    ]
    assert (bench.ledger.in_use, bench.ledger.peak, bench.ledger.available) == (100, 100, 0)
    assert bench.end("a") == {"c"}


def test_what_can_never_fit_is_refused_at_once() -> None:
    bench = Bench()
    assert bench.ask("a", 101) is State.REFUSED
    assert bench.ledger.waiting == 0


def test_without_bypass_it_is_first_in_first_out() -> None:
    bench = Bench(max_bypass=0)
    bench.ask("a", 60)
    bench.ask("large", 80)
    bench.ask("small", 1)
    assert bench.waiting == {"large", "small"}
    assert bench.end("a") == {"large", "small"}


def test_small_ones_pass_a_head_that_does_not_fit_and_the_others_do_not() -> None:
    """Small: at most a quarter of the head, or among the smallest that asked for little together."""
    bench = Bench()
    for name, size in {"a": 10, "b": 10, "c": 10, "d": 50, "head": 80, "small": 10, "middling": 11}.items():
        bench.ask(name, size)
    assert bench.running == {"a", "b", "c", "d", "small"}
    assert bench.waiting == {"head", "middling"}


def test_nobody_passes_a_head_that_has_been_passed_often_enough() -> None:
    bench = Bench(max_bypass=3)
    bench.ask("a", 60)
    bench.ask("head", 99)
    states = [bench.ask(f"small {n}", 1) for n in range(5)]
    assert states == [State.GRANTED] * 3 + [State.WAITING] * 2
    assert bench.end("a") == bench.end("small 0") == set()
    assert bench.end("small 1") == {"head"}
    assert bench.end("small 2") == {"small 3"}


def test_nobody_passes_a_head_that_has_waited_long_enough() -> None:
    bench = Bench(max_bypass_wait=30.0)
    bench.ask("a", 60)
    bench.ask("head", 90)
    bench.now = 29.9
    assert bench.ask("early", 2) is State.GRANTED
    bench.now = 30.1
    assert bench.ask("late", 2) is State.WAITING


def test_when_a_waiting_head_leaves_those_behind_it_are_looked_at_again() -> None:
    bench = Bench(max_bypass=0)
    bench.ask("a", 60)
    bench.ask("head", 80)
    bench.ask("b", 30)
    bench.ask("c", 10)
    assert bench.end("head") == {"b", "c"}


def test_a_waiter_that_was_just_granted_and_gives_up_hands_its_bytes_on() -> None:
    bench = Bench()
    bench.ask("a", 100)
    bench.ask("b", 100)
    bench.ask("c", 100)
    assert bench.end("a") == {"b"}
    assert bench.end("b") == {"c"}
    assert bench.ledger.in_use == 100


def test_a_newcomer_never_takes_what_a_waiter_was_granted() -> None:
    bench = Bench()
    bench.ask("a", 100)
    bench.ask("b", 100)
    bench.end("a")
    assert bench.ask("newcomer", 100) is State.WAITING
    assert bench.ledger.in_use == 100


def test_ending_a_ticket_again_changes_nothing() -> None:
    bench = Bench()
    bench.ask("a", 60)
    bench.end("a")
    bench.ask("b", 60)
    bench.ask("c", 60)
    assert bench.end("a") == set()
    assert bench.ask("never", 200) is State.REFUSED
    assert bench.end("never") == set()
    assert (bench.ledger.in_use, bench.waiting) == (60, {"c"})


def test_when_the_line_is_full_the_next_one_is_refused_at_once() -> None:
    bench = Bench(max_waiting=1)
    states = [bench.ask(name, 100) for name in "abcdef"]
    assert states == [State.GRANTED, State.WAITING] + [State.REFUSED] * 4
    assert bench.ledger.is_full(0)
    bench.end("b")
    assert not bench.ledger.is_full(0)


def test_where_nobody_may_wait_what_does_not_fit_is_refused_and_what_fits_starts() -> None:
    bench = Bench(max_waiting=0)
    assert bench.ask("a", 60) is State.GRANTED
    assert bench.ask("b", 60) is State.REFUSED
    assert bench.ask("c", 40) is State.GRANTED
    assert not bench.ledger.is_full(0)


def test_no_more_run_at_once_than_allowed_however_small() -> None:
    bench = Bench(max_running=2)
    for name in "abcd":
        bench.ask(name, 1)
    assert bench.running == {"a", "b"}
    assert bench.named(bench.ledger.run_at_most(3, 0.0)) == {"c"}
    bench.ledger.run_at_most(1, 0.0)
    assert bench.end("a") == bench.end("b") == set()
    assert bench.end("c") == {"d"}
    assert bench.ledger.run_at_most(None, 0.0) == []


# changing what is held


def test_a_lease_grows_only_where_it_fits_now_and_shrinks_always() -> None:
    bench = Bench(Lane("a", limit=0.5), Lane("b"))
    bench.ask("a", 40, "a")
    bench.ask("b", 30, "b")
    assert not bench.ledger.can_grow(bench.tickets["a"], 51)
    assert not bench.ledger.can_grow(bench.tickets["b"], 61)
    assert bench.ledger.can_grow(bench.tickets["a"], 50)
    assert bench.ledger.change(bench.tickets["a"], 50, 0.0) == []
    assert (bench.ledger.in_use, bench.ledger.peak) == (80, 80)
    bench.ask("c", 40, "b")
    assert bench.named(bench.ledger.change(bench.tickets["a"], 0, 0.0)) == {"c"}
    assert bench.ledger.in_use == 70


def test_one_that_waits_keeps_its_place_when_it_comes_to_ask_for_less_or_more() -> None:
    bench = Bench(max_bypass=0)
    bench.ask("a", 60)
    bench.ask("b", 70)
    bench.ask("c", 30)
    assert bench.ledger.change(bench.tickets["c"], 20, 0.0) == []
    assert bench.ledger.waiting_bytes == 90
    assert bench.named(bench.ledger.change(bench.tickets["b"], 15, 0.0)) == {"b", "c"}
    assert (bench.ledger.in_use, bench.ledger.waiting_bytes) == (95, 0)
    bench.ask("d", 10)
    bench.ledger.change(bench.tickets["d"], 1000, 0.0)
    assert bench.tickets["d"].bytes == 100  # what can ever start
    bench.end("a"), bench.end("b")
    assert bench.end("c") == {"d"}


def test_a_smaller_capacity_takes_nothing_back_and_grants_nothing_until_it_fits() -> None:
    bench = Bench()
    bench.ask("a", 50)
    bench.ask("b", 50)
    bench.ask("c", 30)
    bench.ask("never again", 70)
    assert bench.named(bench.ledger.resize([60], 0.0)) == {"never again"}
    assert bench.tickets["never again"].state is State.REFUSED
    assert (bench.ledger.in_use, bench.ledger.available) == (100, 0)
    assert bench.ask("d", 1) is State.WAITING
    assert bench.end("a") == {"d"}
    assert bench.end("b") == {"c"}
    assert bench.named(bench.ledger.resize([200], 0.0)) == set()
    assert bench.ask("e", 169) is State.GRANTED


def test_a_ceiling_stops_grants_and_its_end_lets_them_go_on() -> None:
    bench = Bench()
    bench.ask("a", 30)
    assert bench.ledger.allow(0, 0.0, ceiling=40) == []
    assert bench.ask("b", 30) is State.WAITING
    assert bench.named(bench.ledger.allow(0, 0.0, ceiling=None)) == {"b"}
    assert bench.ledger.allow(0, 0.0, capacity=50, ceiling=-5) == []
    assert (bench.ledger.capacity, bench.ledger.available, bench.ledger.largest()) == (50, 0, 50)


def test_a_head_above_the_ceiling_does_not_keep_those_behind_it_from_what_is_left() -> None:
    """Room that is made for it would lie idle. It is first again when the ceiling is gone."""
    bench = Bench(max_bypass=2, max_bypass_wait=30.0)
    bench.ledger.allow(0, 0.0, ceiling=50)
    bench.ask("head", 80)
    for n in range(6):
        bench.now += 20.0
        assert bench.ask(f"small {n}", 8) is State.GRANTED
    assert bench.named(bench.ledger.allow(0, bench.now, ceiling=None)) == set()
    assert bench.ask("behind", 8) is State.WAITING
    for n in range(6):
        bench.end(f"small {n}")
    assert bench.running == {"head", "behind"}


def test_a_head_above_every_ceiling_holds_no_other_lane_back() -> None:
    bench = Bench(Lane("a", priority=5), Lane("b"), max_bypass_wait=0.0)
    bench.ledger.allow(0, 0.0, ceiling=50)
    bench.ask("head", 80, "a")
    assert bench.ask("b", 50, "b") is State.GRANTED


def test_a_closed_ledger_refuses_everybody_and_lets_leases_run_on() -> None:
    bench = Bench()
    bench.ask("a", 60)
    bench.ask("b", 60)
    assert bench.named(bench.ledger.close(0.0)) == {"b"}
    assert bench.ask("c", 1) is State.REFUSED
    assert bench.ledger.run_at_most(None, 0.0) == []
    assert bench.ask("d", 1) is State.REFUSED
    assert bench.end("a") == set()
    assert bench.ledger.in_use == 0


def test_what_is_forced_is_held_and_given_back_whether_it_fits_or_not() -> None:
    bench = Bench()
    for name in "ab":
        bench.tickets[name] = ticket = Ticket(80)
        bench.ledger.force(ticket, 0.0)
    assert (bench.ledger.in_use, bench.ledger.peak) == (160, 160)
    bench.end("a")
    bench.end("b")
    assert bench.ledger.in_use == 0


# lanes


def test_the_higher_priority_goes_first_and_equals_in_the_order_they_came() -> None:
    bench = Bench(Lane("low", priority=-1), Lane("a"), Lane("b"), Lane("high", priority=1))
    bench.ask("running", 100, "a")
    for lane in ("low", "b", "a", "high"):
        bench.ask(lane, 100, lane)
    order, running = [], "running"
    while bench.waiting:
        (running,) = bench.end(running)
        order.append(running)
    assert order == ["high", "b", "a", "low"]


def test_a_lower_priority_is_passed_max_bypass_times_and_then_goes_first() -> None:
    bench = Bench(Lane("low"), Lane("high", priority=9), max_bypass=4)
    bench.ask("running", 100, "high")
    bench.ask("patient", 100, "low")
    running, passed = "running", 0
    for n in range(10):
        bench.ask(f"high {n}", 100, "high")
        (running,) = bench.end(running)
        if running == "patient":
            break
        passed += 1
    assert (running, passed) == ("patient", 4)


def test_a_newcomer_of_low_priority_does_not_pass_a_waiting_one_of_high_priority() -> None:
    bench = Bench(Lane("low"), Lane("high", priority=9))
    bench.ask("a", 60, "low")
    bench.ask("high", 60, "high")
    bench.ask("median", 1, "low")
    assert bench.ask("low", 40, "low") is State.WAITING


def test_a_lane_at_its_limit_waits_alone() -> None:
    bench = Bench(Lane("narrow", limit=0.3, priority=9), Lane("wide"), max_bypass_wait=0.0)
    bench.ask("a", 30, "narrow")
    assert bench.ask("b", 30, "narrow") is State.WAITING
    assert bench.ask("c", 70, "wide") is State.GRANTED
    assert bench.ledger.largest(0) == 30


def test_a_head_that_waits_for_its_lanes_limit_is_not_passed_within_its_lane_for_ever() -> None:
    bench = Bench(Lane("narrow", limit=0.5), Lane("wide"), max_bypass=3)
    bench.ask("a", 30, "narrow")
    bench.ask("head", 40, "narrow")
    states = [bench.ask(f"small {n}", 2, "narrow") for n in range(5)]
    assert states == [State.GRANTED] * 3 + [State.WAITING] * 2


def test_other_lanes_do_not_make_a_head_due_while_its_own_limit_keeps_it_waiting() -> None:
    """Or a narrow lane would go before higher priorities whenever it is under its limit."""
    bench = Bench(Lane("narrow", limit=0.2), Lane("wide", priority=5), max_bypass=2)
    bench.ask("a", 20, "narrow")
    bench.ask("narrow", 20, "narrow")
    bench.ask("blocker", 80, "wide")
    for n in range(4):
        bench.ask(f"wide {n}", 10, "wide")
    bench.end("blocker")
    assert {f"wide {n}" for n in range(4)} <= bench.running
    assert bench.tickets["narrow"].passed == 0


def test_a_lane_borrows_what_others_leave_idle_and_gives_it_back_as_it_ends() -> None:
    bench = Bench(Lane("batch"), Lane("gold", guaranteed=0.5))
    for n in range(10):
        bench.ask(f"batch {n}", 10, "batch")
    assert len(bench.running) == 10
    for n in range(8):
        bench.ask(f"more {n}", 10, "batch")
        bench.ask(f"gold {n}", 10, "gold")
    granted = [bench.end(f"batch {n}") for n in range(6)]
    assert granted[:5] == [{f"gold {n}"} for n in range(5)]
    assert granted[5] == {"more 0"}


def test_borrowers_do_not_pass_a_head_inside_its_guarantee_however_small() -> None:
    bench = Bench(Lane("batch", priority=9), Lane("gold", guaranteed=0.4))
    for n in range(50):
        bench.ask(f"batch {n}", 2, "batch")
    bench.ask("gold", 40, "gold")
    bench.ask("small", 2, "batch")
    for n in range(19):
        assert bench.end(f"batch {n}") == set()
    assert bench.end("batch 19") == {"gold"}


def test_small_ones_inside_their_own_guarantee_do_pass_it() -> None:
    bench = Bench(Lane("batch"), Lane("gold", guaranteed=0.4), Lane("silver", guaranteed=0.1))
    for n in range(20):
        bench.ask(f"batch {n}", 5, "batch")
    bench.ask("gold", 40, "gold")
    bench.ask("silver", 5, "silver")
    bench.ask("more", 5, "batch")
    assert bench.end("batch 0") == {"silver"}
    assert bench.end("batch 1") == set()


def test_a_due_head_does_not_stop_a_guarantee_beside_which_it_will_fit() -> None:
    bench = Bench(Lane("batch"), Lane("gold", guaranteed=0.4), max_bypass_wait=10.0)
    bench.ask("a", 30, "batch")
    bench.ask("b", 30, "batch")
    bench.ask("due", 60, "batch")
    bench.now = 20.0
    assert bench.ask("gold", 40, "gold") is State.GRANTED
    bench.ask("gold too", 10, "gold")
    assert bench.end("a") == set()
    assert bench.end("b") == {"due"}


def test_a_due_head_too_large_to_fit_beside_the_guarantees_stops_them_once() -> None:
    bench = Bench(Lane("batch"), Lane("gold", guaranteed=0.4), max_bypass_wait=10.0)
    bench.ask("a", 60, "batch")
    bench.ask("due", 61, "batch")
    bench.now = 20.0
    assert bench.ask("gold", 20, "gold") is State.WAITING
    assert bench.end("a") == {"due", "gold"}


def test_a_guarantee_is_no_reason_to_pass_where_others_hold_their_own() -> None:
    """Above its guarantee a lane is like any other."""
    bench = Bench(Lane("a", guaranteed=0.5), Lane("b", guaranteed=0.5))
    bench.ask("a", 50, "a")
    bench.ask("b", 30, "b")
    bench.ask("b first", 30, "b")
    assert bench.ask("a second", 20, "a") is State.WAITING
    assert bench.end("a") == {"b first", "a second"}


def test_a_request_that_nobody_may_wait_for_leaves_nobody_waiting_in_vain() -> None:
    """While it is looked at it holds others back, and lets one pass that brings a lane to its limit."""
    lanes = Lane("now", priority=9, max_waiting=0), Lane("narrow", limit=0.8), Lane("wide")
    bench = Bench(*lanes, small=SmallSizes(part=1 / 4, share=0.0))
    bench.ask("a", 30, "wide")
    bench.ask("b", 25, "narrow")
    bench.ask("head", 50, "narrow")
    bench.ask("small beside a large one", 15, "narrow")
    bench.ask("c", 28, "wide")
    assert bench.waiting == {"head", "small beside a large one", "c"}
    assert bench.ask("large", 90, "now") is State.REFUSED
    assert bench.waiting == {"head"}


@pytest.mark.parametrize("max_bypass", [0, 32])
def test_with_no_patience_at_all_every_head_is_due_at_once(max_bypass: int) -> None:
    bench = Bench(Lane("low"), Lane("high", priority=9), max_bypass=max_bypass, max_bypass_wait=0.0)
    bench.ask("a", 60, "low")
    bench.ask("low", 60, "low")
    bench.now = 1.0
    bench.ask("high", 10, "high")
    assert bench.waiting == {"low", "high"}
    assert bench.end("a") == {"low", "high"}


def test_a_guaranteed_lane_with_nobody_waiting_lends_everything() -> None:
    bench = Bench(Lane("batch"), Lane("gold", guaranteed=1.0))
    assert bench.ask("a", 100, "batch") is State.GRANTED


def test_a_ticket_says_how_it_stands() -> None:
    assert repr(Ticket(10, 1)) == "Ticket(10, lane=1, state=new)"
