"""Refusals: which setting said no, and when to come back."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_admission import Lane, QueueFull, QueueTimeout, Rejected, TooLarge, Unavailable
from gpu_admission.admission.locked import LockedLedger
from gpu_admission.admission.refusals import Refusals
from gpu_admission.budget.ledger import Ledger
from gpu_admission.budget.ticket import Ticket
from gpu_admission.settings import Settings


def refusals(capacity: int = 100, **settings: Any) -> tuple[Refusals, Ledger]:
    checked = Settings(estimator=1, **settings)
    ledger = Ledger(
        [capacity],
        lanes=checked.lanes,
        max_waiting=checked.max_waiting,
        max_waiting_per_flow=checked.max_waiting_per_flow,
    )
    return Refusals(checked, LockedLedger(ledger, lambda tickets: None)), ledger


def test_a_request_that_can_never_fit_names_the_limit_that_it_passes() -> None:
    plain, _ = refusals()
    assert plain.too_large(101, 0).detail == "this request needs 101 B and can never fit: capacity=100 B"
    lanes, _ = refusals(lanes=[Lane("a"), Lane("b", limit=0.5)])
    refused = lanes.too_large(60, 1)
    assert isinstance(refused, TooLarge)
    assert (refused.detail, refused.needed, refused.capacity) == (
        "this request needs 60 B and can never fit: lane 'b': limit=50 B",
        60,
        50,
    )


@pytest.mark.parametrize(
    ("settings", "of_flow", "text"),
    [
        ({"max_waiting": 3}, False, "max_waiting=3 requests wait already"),
        ({"max_waiting": 0}, False, "it does not fit now, and max_waiting=0 lets nobody wait"),
        ({"max_waiting_per_flow": 2}, True, "max_waiting_per_flow=2 requests of this flow wait already"),
        (
            {"lanes": [Lane("a", max_waiting=1), Lane("b")]},
            False,
            "max_waiting=1 requests wait already in lane 'a'",
        ),
    ],
)
def test_a_full_queue_names_the_setting_that_fills_it(
    settings: dict[str, Any], of_flow: bool, text: str
) -> None:
    refused = refusals(**settings)[0].queue_full(0, of_flow=of_flow)
    assert isinstance(refused, QueueFull)
    assert refused.detail == text


def test_who_waited_too_long_hears_whose_patience_it_was() -> None:
    made, _ = refusals()
    own = made.timed_out(Ticket(60), 2.0, "deadline")
    ours = made.timed_out(Ticket(60), 2.5, "lane 'a': timeout")
    assert isinstance(own, QueueTimeout)
    assert (own.reason, own.detail) == (
        "deadline",
        "60 B were not free within the request's own deadline of 2 s",
    )
    assert (ours.reason, ours.detail) == (
        "queue_timeout",
        "60 B were not free within lane 'a': timeout=2.5 s",
    )


def test_who_had_waited_for_its_estimate_hears_the_setting_as_it_was_written_and_where_the_time_went() -> (
    None
):
    made, _ = refusals()
    ticket = Ticket(60, waited_before=29.96)
    assert made.timed_out(ticket, 30.0, "timeout").detail == (
        "60 B were not free within timeout=30 s, 30.0 s of which went by before it could queue"
    )
    assert made.too_late(ticket, 12.34, 30.0, "timeout").detail == (
        "the forecast wait of 12.3 s, after 30.0 s before it could queue, exceeds timeout=30 s "
        "(refuse_early=True)"
    )
    assert made.unread(30.0, "deadline").detail == (
        "its body was not read within the request's own deadline of 30 s: too many large ones are read now"
    )


def test_an_early_refusal_tells_the_forecast() -> None:
    made, _ = refusals()
    assert made.too_late(Ticket(60), 12.34, 5.0, "timeout").reason == "queue_timeout"
    refused = made.too_late(Ticket(60), 12.34, 5.0, "deadline")
    assert refused.reason == "deadline"
    assert "the forecast wait of 12.3 s exceeds the request's own deadline of 5 s" in refused.detail


def test_growth_that_does_not_fit_is_a_full_queue() -> None:
    refused = refusals()[0].no_room(60)
    assert refused.detail == "growing to 60 B does not fit now, and growing never waits"
    assert refused.title == "The request needs more than it holds, and that is not free now"


def test_draining_is_unavailable() -> None:
    assert isinstance(refusals()[0].draining(), Unavailable)


def test_completing_fills_in_what_was_not_known_and_keeps_what_was() -> None:
    made, ledger = refusals()
    ledger.request(Ticket(100), 0.0)
    ledger.request(Ticket(60), 0.0)
    refused: Rejected = made.queue_full(0)
    made.complete(refused, 7)
    assert (refused.needed, refused.capacity, refused.waiting) == (7, 100, 1)
    assert refused.retry_after is not None
    assert 1 <= refused.retry_after <= 60
    known = made.too_large(101, 0)
    made.complete(known, 7)
    assert (known.needed, known.capacity, known.retry_after) == (101, 100, None)


def test_nothing_is_said_about_other_requests_than_how_many_wait() -> None:
    made, ledger = refusals()
    ledger.request(Ticket(87, flow="secret-tenant"), 0.0)
    refused = made.queue_full(0)
    made.complete(refused, 50)
    assert "87" not in refused.detail
    assert "secret-tenant" not in repr(refused) + str(refused) + str(refused.headers)
