"""How fast bytes come back."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_admission.budget.forecast import DrainRate
from gpu_admission.budget.ledger import Ledger
from gpu_admission.budget.ticket import Ticket


def drained(*ends: tuple[float, int]) -> DrainRate:
    drain = DrainRate()
    for now, size in ends:
        drain.released(size, now, 1)
    return drain


def test_nothing_is_known_until_two_leases_have_ended_under_load() -> None:
    assert DrainRate().rate is None
    assert DrainRate().seconds(10) is None
    assert drained((5.0, 100)).rate is None
    assert drained((5.0, 100), (7.0, 100)).rate == pytest.approx(50.0)


def test_the_rate_is_bytes_a_second_while_somebody_waits() -> None:
    drain = drained(*[(float(n), 20) for n in range(50)])
    assert drain.rate == pytest.approx(20.0)
    assert drain.seconds(100) == pytest.approx(5.0)


def test_it_follows_a_change_within_its_memory() -> None:
    slow = [(float(n), 10) for n in range(100)]
    fast = [(100 + n / 10, 10) for n in range(1200)]
    rate = drained(*slow, *fast).rate
    assert rate is not None
    assert 90 < rate < 101


def test_an_idle_budget_says_nothing_about_how_fast_it_can_go() -> None:
    drain = drained((0.0, 100), (1.0, 100))
    drain.released(5, 500.0, 0)
    drain.released(5, 1000.0, 1)
    assert drain.rate == pytest.approx(100.0)


def test_many_ends_at_one_instant_are_no_rate() -> None:
    assert drained(*[(3.0, 50)] * 9).rate is None


def test_leases_that_gave_back_nothing_are_no_rate() -> None:
    drain = drained((0.0, 0), (1.0, 0), (2.0, 0))
    assert drain.rate is None
    assert drain.seconds(1) is None


def test_a_clock_that_steps_back_makes_no_time_negative() -> None:
    drain = drained((10.0, 100), (4.0, 100), (6.0, 100))
    assert drain.rate == pytest.approx(100.0, rel=0.05)


def test_the_forecast_is_bytes_ahead_over_the_drain_rate() -> None:
    ledger = Ledger([100])
    tickets = [Ticket(50) for _ in range(6)]
    for ticket in tickets:
        ledger.request(ticket, 0.0)
    assert ledger.forecast(50, 0.0) is None
    ledger.release(tickets[0], 10.0)
    ledger.release(tickets[1], 15.0)
    assert ledger.drain.rate == pytest.approx(10.0)
    assert ledger.forecast(50, 15.0) == pytest.approx((2 * 50 + 50) / 10)
    assert ledger.usual == 50


def test_whoever_fits_now_waits_no_second() -> None:
    ledger = Ledger([100])
    assert ledger.usual == 0
    assert ledger.forecast(100, 0.0) == 0.0
    ledger.request(Ticket(60), 0.0)
    assert ledger.forecast(40, 0.0) == 0.0
    assert ledger.forecast(41, 0.0) is None


def test_bytes_that_are_free_are_no_promise_while_no_more_may_run() -> None:
    ledger = Ledger([100], max_running=1)
    ledger.request(Ticket(10), 0.0)
    assert ledger.forecast(10, 0.0) is None


def drained_ledger(**options: Any) -> Ledger:
    """100 bytes, all held; 10 bytes a second have come back."""
    ledger = Ledger([100], **options)
    ledger.request(Ticket(100), 0.0)
    ledger.drain._bytes, ledger.drain._busy = 100.0, 10.0
    return ledger


def test_a_newcomer_waits_for_those_ahead_and_for_its_own_bytes() -> None:
    ledger = drained_ledger()
    assert ledger.forecast(40, 0.0) == pytest.approx(4.0)
    ledger.request(Ticket(60), 0.0)
    assert ledger.forecast(40, 0.0) == pytest.approx((60 + 40) / 10)


def test_the_line_is_as_fast_as_it_has_got_shorter_lately() -> None:
    ledger = drained_ledger()
    ledger.request(Ticket(60), 0.0)
    outflow = ledger.lanes[0].outflow
    outflow._bytes, outflow._busy = 40.0, 2.0
    assert ledger.forecast(40, 0.0) == pytest.approx(60 / 20 + 40 / 10)


def test_one_that_waits_already_is_not_behind_itself() -> None:
    ledger = drained_ledger()
    ledger.request(Ticket(60), 0.0)
    last = Ticket(40)
    ledger.request(last, 0.0)
    assert ledger.forecast_of(last, 0.0) == pytest.approx((60 + 40) / 10)
    (alone,) = [Ticket(50)]
    empty = drained_ledger()
    empty.request(alone, 0.0)
    assert empty.forecast_of(alone, 0.0) == pytest.approx(5.0)


def test_a_small_one_passes_those_ahead_while_the_head_may_be_passed() -> None:
    ledger = drained_ledger(max_bypass_wait=30.0)
    ledger.request(Ticket(80), 0.0)
    assert ledger.forecast(20, 0.0) == pytest.approx(2.0)
    assert ledger.forecast(20, 31.0) == pytest.approx((80 + 20) / 10)


def test_where_nobody_passes_a_small_one_waits_like_any_other() -> None:
    ledger = drained_ledger(max_bypass=0)
    ledger.request(Ticket(80), 0.0)
    assert ledger.forecast(20, 0.0) == pytest.approx((80 + 20) / 10)


def test_of_several_flows_a_newcomer_waits_for_its_turn_only() -> None:
    ledger = drained_ledger(max_waiting=200)
    for _ in range(18):
        ledger.request(Ticket(50, 0, "busy"), 0.0)
    ledger.request(Ticket(50, 0, "calm"), 0.0)
    state = ledger.lanes[0]
    assert state.ahead_of("new") == 50 * 2
    assert state.ahead_of("calm") == 50 * 4
    assert state.ahead_of("busy") == 50 * 19
    assert ledger.forecast(50, 0.0, flow="new") == pytest.approx((2 * 50 + 50) / 10)


def test_running_flows_are_not_ahead_of_anybody() -> None:
    ledger = Ledger([100])
    ledger.request(Ticket(10, 0, "a"), 0.0)
    ledger.request(Ticket(10, 0, "b"), 0.0)
    assert ledger.lanes[0].ahead_of("c") == 0
    assert ledger.asked == (10, 10)
