"""Which device takes a request."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_admission.budget.ledger import Ledger
from gpu_admission.budget.placement import POLICIES, Placement, best_fit, most_free, round_robin
from gpu_admission.budget.ticket import State, Ticket


def test_most_free_keeps_loads_level() -> None:
    assert most_free(10, [20, 30, 30], 0) == 1


def test_best_fit_leaves_room_for_large_ones() -> None:
    assert best_fit(10, [30, 12, 9, 12], 0) == 1


def test_round_robin_takes_devices_in_turn_and_skips_full_ones() -> None:
    free = [20, 5, 20]
    assert [round_robin(10, free, turn) for turn in range(6)] == [0, 2, 2, 0, 2, 2]


@pytest.mark.parametrize("placement", POLICIES.values(), ids=POLICIES)
def test_no_policy_splits_a_request_over_devices(placement: Placement) -> None:
    assert placement(30, [20, 29, 20], 1) is None


@pytest.mark.parametrize("placement", POLICIES.values(), ids=POLICIES)
def test_two_requests_of_twenty_go_to_two_cards_of_twenty_four(placement: Placement) -> None:
    ledger = Ledger([24, 24], placement=placement)
    too_large, *twenties = Ticket(30), Ticket(20), Ticket(20), Ticket(20)
    for ticket in (too_large, *twenties):
        ledger.request(ticket, 0.0)
    assert too_large.state is State.REFUSED
    assert {ticket.device for ticket in twenties[:2]} == {0, 1}
    assert twenties[2].state is State.WAITING


def test_sizes_of_devices_are_never_summed() -> None:
    """14 bytes free on each of two cards: one of the three requests of 10 must wait."""
    ledger = Ledger([14, 14])
    tickets = [Ticket(10), Ticket(10), Ticket(10)]
    for ticket in tickets:
        ledger.request(ticket, 0.0)
    assert [ticket.state for ticket in tickets] == [State.GRANTED, State.GRANTED, State.WAITING]
    assert ledger.available == 4


def test_a_policy_that_names_a_full_device_does_not_exceed_it() -> None:
    ledger = Ledger([50, 50], placement=lambda size, free, turn: 0)
    first, second = Ticket(40), Ticket(40)
    ledger.request(first, 0.0)
    ledger.request(second, 0.0)
    assert (ledger.accounts[0].in_use, second.state) == (40, State.WAITING)
    assert ledger.release(first, 1.0) == [second]


def test_a_policy_of_ones_own_that_finds_no_place_makes_the_head_wait() -> None:
    def only_the_second(size: int, free: object, turn: int) -> int | None:
        return 1 if size <= free[1] else None  # type: ignore[index]

    ledger = Ledger([50, 50], placement=only_the_second)
    first, second = Ticket(40), Ticket(40)
    ledger.request(first, 0.0)
    ledger.request(second, 0.0)
    assert (first.device, second.state) == (1, State.WAITING)
    assert ledger.release(first, 1.0) == [second]
    assert second.device == 1


@given(
    size=st.integers(1, 30),
    devices=st.lists(
        st.tuples(st.integers(0, 40), st.integers(0, 40), st.booleans()), min_size=2, max_size=4
    ),
)
def test_the_default_is_most_free_in_fewer_steps(size: int, devices: list[tuple[int, int, bool]]) -> None:
    """With ceilings, with more held than a lowered one allows, and with devices that are tried out."""
    ledger = Ledger([40] * len(devices))
    for index, (ceiling, held, is_tried) in enumerate(devices):
        account = ledger.accounts[index]
        account.in_use, account.running = held, 1
        ledger.allow(index, 0.0, ceiling=ceiling, max_running=1 if is_tried else None)
    free = [account.free for account in ledger.accounts]
    assert ledger._place(size) == most_free(size, free, 0)
