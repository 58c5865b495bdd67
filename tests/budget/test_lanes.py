"""Lanes as people write them, and the line of flows inside one."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_admission.budget.lanes import Lane, LaneState
from gpu_admission.budget.ledger import Ledger
from gpu_admission.budget.ticket import State, Ticket


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"name": ""}, TypeError, r"Lane\.name"),
        ({"name": 3}, TypeError, r"Lane\.name"),
        ({"guaranteed": "half"}, TypeError, "guaranteed must be a number"),
        ({"guaranteed": True}, TypeError, "guaranteed must be a number"),
        ({"guaranteed": -0.1}, ValueError, "guaranteed is a share between 0 and 1"),
        ({"limit": 1.1}, ValueError, "limit is a share between 0 and 1"),
        ({"limit": float("nan")}, ValueError, "limit is a share between 0 and 1"),
        ({"limit": 0}, ValueError, "limit must be above 0"),
        ({"guaranteed": 0.5, "limit": 0.4}, ValueError, "at least guaranteed"),
        ({"priority": 1.0}, TypeError, "priority must be an int"),
        ({"priority": True}, TypeError, "priority must be an int"),
        ({"priority": "5"}, TypeError, "priority must be an int"),
        ({"timeout": "3"}, TypeError, "timeout must be a number"),
        ({"timeout": -1}, ValueError, "timeout must be 0 or more"),
        ({"timeout": float("nan")}, ValueError, "timeout must be 0 or more"),
        ({"max_waiting": -1}, ValueError, "max_waiting must be 0 or more"),
        ({"max_waiting": 1.5}, TypeError, "max_waiting must be an int"),
    ],
)
def test_a_wrong_lane_is_refused_with_the_name_of_its_setting(
    options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        Lane(**{"name": "a", **options})


def test_a_lane_takes_a_huge_priority_and_a_timeout_without_end() -> None:
    lane = Lane("a", guaranteed=0.5, limit=1, priority=10**30, timeout=float("inf"), max_waiting=0)
    assert (lane.priority, lane.max_waiting) == (10**30, 0)


def test_a_flow_that_went_idle_comes_back_at_the_clock_of_the_others() -> None:
    """Idle time earns no credit: it does not have the lane to itself until it has caught up."""
    ledger = Ledger([10], max_waiting=100)
    first = Ticket(10, 0, "steady")
    ledger.request(first, 0.0)
    running: list[Ticket] = [first]
    for _ in range(20):
        ledger.request(Ticket(10, 0, "steady"), 0.0)
    now = 0.0
    for _ in range(10):
        now += 1.0
        running = list(ledger.release(running[0], now))
    back = [Ticket(10, 0, "idle till now") for _ in range(5)]
    for ticket in back:
        ledger.request(ticket, now)
    order = []
    for _ in range(10):
        now += 1.0
        running = list(ledger.release(running[0], now))
        order.append(running[0].flow)
    assert order.count("steady") == 5


def test_a_newcomer_has_no_credit_for_the_time_before_it_came() -> None:
    """Also not where many flows are known that only run, and so share in the lane's clock."""
    ledger = Ledger([100], max_waiting=100)
    for n in range(50):
        ledger.request(Ticket(1, 0, f"runs {n}"), 0.0)
    running, now = [Ticket(50, 0, "old")], 0.0
    ledger.request(running[0], now)
    for _ in range(90):
        ledger.request(Ticket(50, 0, "old"), now)
    for _ in range(40):
        now += 1.0
        running = list(ledger.release(running[0], now))
    for _ in range(10):
        ledger.request(Ticket(50, 0, "new"), now)
    order = []
    for _ in range(12):
        now += 1.0
        running = list(ledger.release(running[0], now))
        order.append(running[0].flow)
    assert 5 <= order.count("old") <= 7


def test_equal_flows_take_turns_one_by_one() -> None:
    """From the moment at which both have had the same: the first two were asked by one alone."""
    ledger = Ledger([10], max_waiting=100)
    running = [Ticket(10, 0, "a")]
    ledger.request(running[0], 0.0)
    for flow in "aaaabbbb":
        ledger.request(Ticket(10, 0, flow), 0.0)
    order = "a"
    for now in range(1, 9):
        running = list(ledger.release(running[0], float(now)))
        order += running[0].flow
    assert order == "aa" + "bb" + "ababa"


def test_one_flow_is_first_in_first_out() -> None:
    ledger = Ledger([10], max_waiting=100)
    blocker = Ticket(10, 0, "a")
    ledger.request(blocker, 0.0)
    tickets = [Ticket(10, 0, "a") for _ in range(10)]
    for ticket in tickets:
        ledger.request(ticket, 0.0)
    order = []
    running = blocker
    for now in range(1, 11):
        (running,) = ledger.release(running, float(now))
        order.append(running)
    assert order == tickets


def test_a_flow_whose_waiters_come_and_go_costs_no_memory() -> None:
    """As when one tenant's requests time out again and again behind another's head."""
    ledger = Ledger([10], max_waiting=100)
    mine, head = Ticket(6, 0, "mine"), Ticket(9, 0, "theirs")
    ledger.request(mine, 0.0)
    ledger.request(head, 0.0)
    for now in range(5000):
        waiter = Ticket(9, 0, "mine")
        ledger.request(waiter, float(now))
        assert waiter.state is State.WAITING
        ledger.release(waiter, float(now))
    assert len(ledger.lanes[0]._order) <= 70
    ledger.release(mine, 6000.0)
    ledger.release(head, 6001.0)
    assert not ledger.lanes[0]._order


def test_a_small_request_passes_a_head_only_while_its_flow_is_not_far_ahead() -> None:
    lane = LaneState(Lane("a"), 100)
    head, small = Ticket(50, 0, "owed"), Ticket(5, 0, "ahead")
    lane.join(head, 0.0)
    lane.join(small, 0.0)
    assert lane.small(10) is small
    lane._flows["ahead"].charged = 50.0 * lane.hold + 1.0
    lane._put("ahead", lane._flows["ahead"])
    assert lane.small(10) is None


def test_small_ones_are_sought_in_the_next_few_flows_only() -> None:
    lane = LaneState(Lane("a"), 100)
    for n in range(9):
        lane.join(Ticket(50, 0, f"flow {n}"), 0.0)
    lane.join(near := Ticket(50, 0, "flow 1"), 0.0)
    lane.join(far := Ticket(5, 0, "flow 8"), 0.0)
    assert lane.small(10) is None
    lane.join(small := Ticket(5, 0, "flow 1"), 0.0)
    assert lane.small(10) is small
    assert {near, far, small} < set(lane.tickets())


def test_a_flow_has_a_bound_of_its_own_on_its_waiters() -> None:
    ledger = Ledger([10], max_waiting=100, max_waiting_per_flow=2)
    for _ in range(4):
        ledger.request(last := Ticket(10, 0, "busy"), 0.0)
    ledger.request(other := Ticket(10, 0, "calm"), 0.0)
    ledger.request(unnamed := Ticket(10, 0), 0.0)
    assert (last.state, other.state, unnamed.state) == (State.REFUSED, State.WAITING, State.WAITING)
    assert ledger.lanes[0].waiting_of("busy") == 2
    assert ledger.lanes[0].waiting_of("nobody") == 0


def test_a_lease_that_lasted_less_than_no_time_credits_no_flow() -> None:
    """A clock that steps back between a start and an end."""
    ledger = Ledger([10])
    ticket, other = Ticket(10, 0, "a"), Ticket(10, 0, "a")
    ledger.request(ticket, 100.0)
    ledger.request(other, 100.0)
    ledger.release(ticket, 40.0)
    assert ledger.lanes[0].hold >= 0
    assert ledger.lanes[0]._flows["a"].charged >= 0
