"""Which calls share a batch: never more than its bytes by the padded measure, like with like."""

from __future__ import annotations

import math
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_admission.serving.call import Call
from gpu_admission.serving.packing import CLEAN, Limits, halves, pack, padded, padding_share

ITEMS = 20_000


def calls_of(prices: list[int], rows: list[int] | None = None) -> list[Call]:
    calls = []
    for number, price in enumerate(prices):
        call = Call(number, price=price, rows=rows[number] if rows else 1, key=None, lease=None, at=0.0)
        call.number = number
        calls.append(call)
    return calls


def batches_of(waiting: list[Call], limits: Limits) -> list[list[Call]]:
    batches = []
    while waiting:
        batch = pack(waiting[: 4 * limits.rows], limits)
        batches.append(batch)
        taken = {call.number for call in batch}
        waiting = [call for call in waiting if call.number not in taken]
    return batches


def test_no_batch_of_twenty_thousand_random_items_costs_more_than_its_bytes() -> None:
    dice = random.Random(7)
    seen = 0
    while seen < ITEMS:
        most = dice.choice([1_000, 16_000, 10**6])
        limits = Limits(dice.randrange(1, 65), most, dice.random())
        prices = [min(most, int(dice.lognormvariate(5, 2))) for _ in range(dice.randrange(1, 400))]
        calls = calls_of(prices)
        batches = batches_of(calls, limits)
        for batch in batches:
            assert len(batch) * max(call.price for call in batch) <= most
            assert len(batch) <= limits.rows
            assert padding_share(batch) <= limits.padding + 1e-9 or len(batch) == 1
        assert sorted(call.number for batch in batches for call in batch) == list(range(len(calls)))
        seen += len(calls)


@settings(max_examples=500)
@given(st.data())
def test_a_batch_has_the_oldest_and_no_larger_run_of_prices_around_it_fits(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 4)), min_size=1, max_size=12))
    limits = Limits(
        data.draw(st.integers(4, 12)), data.draw(st.integers(200, 400)), data.draw(st.floats(0, 1))
    )
    calls = calls_of([price for price, _ in sizes], [rows for _, rows in sizes])
    batch = pack(calls, limits)
    assert batch[0] is calls[0]
    assert [call.number for call in batch] == sorted(call.number for call in batch)
    total = sum(call.rows for call in batch)
    assert padded(batch) <= limits.bytes
    assert total <= limits.rows
    if not _all_together(calls, limits):
        by_price = sorted(calls, key=lambda call: call.price)
        head = by_price.index(calls[0])
        best = max(
            sum(call.rows for call in by_price[first : last + 1])
            for first in range(head + 1)
            for last in range(head, len(by_price))
            if first == last == head or _fits(by_price[first : last + 1], limits)
        )
        assert total == best


def _fits(calls: list[Call], limits: Limits) -> bool:
    prices = sum(call.rows * call.price for call in calls)
    return limits.allow(sum(call.rows for call in calls), max(call.price for call in calls), prices)


def _all_together(calls: list[Call], limits: Limits) -> bool:
    """Whether the oldest that there are rows for may run as they are: then no better ones are looked for."""
    rows, oldest = 0, []
    for call in calls:
        rows += call.rows
        if rows > limits.rows:
            break
        oldest.append(call)
    return _fits(oldest, limits)


def test_an_outlier_goes_with_its_like() -> None:
    prices = [10, 800, 12, 900, 9, 11]
    assert [call.price for call in pack(calls_of(prices), Limits(32, 10**6, 0.3))] == [10, 12, 9, 11]
    assert [call.price for call in pack(calls_of(prices[1:]), Limits(32, 10**6, 0.3))] == [800, 900]


def test_scores_that_grow_with_the_square_are_the_callables_to_say() -> None:
    lengths = [100] * 8 + [1000]
    calls = calls_of([4 * length + length**2 for length in lengths])
    batch = pack(calls, Limits(32, 8 * (400 + 100**2), 1.0))
    assert [call.price for call in batch] == [10_400] * 8
    assert padded(calls) == 9 * (4000 + 1000**2)


def test_free_items_are_limited_by_their_number_alone() -> None:
    assert len(pack(calls_of([0] * 50), Limits(32, None, 0.5))) == 32


@given(st.lists(st.integers(0, 100), min_size=2, max_size=20))
def test_halves_lose_nobody_and_keep_the_dear_apart(prices: list[int]) -> None:
    cheap, dear = halves(calls_of(prices))
    assert sorted(call.number for call in cheap + dear) == list(range(len(prices)))
    assert max(call.price for call in cheap) <= min(call.price for call in dear)
    assert abs(len(cheap) - len(dear)) <= 1


def test_a_limit_that_was_learned_holds_the_next_batches_and_is_raised_slowly() -> None:
    limits = Limits(32, 16_000, 0.5)
    limits.shrink(10, 10_000)
    assert len(pack(calls_of([1000] * 20), limits)) == 5
    assert len(pack(calls_of([9000, 9000]), limits)) == 1, "what is alone may try"
    for _ in range(CLEAN - 1):
        limits.ran_well()
    assert limits.bytes == 5_000
    limits.ran_well()
    assert limits.bytes == 5_625
    for _ in range(CLEAN * 20):
        limits.ran_well()
    assert (limits.rows, limits.bytes) == (32, 16_000)


def test_without_prices_rows_are_halved() -> None:
    limits = Limits(32, None, 0.5)
    limits.shrink(20, 0)
    assert (limits.rows, limits.bytes) == (10, math.inf)
    limits.shrink(1, 0)
    assert limits.rows == 1


def test_a_refusal_that_says_how_much_fits_is_believed() -> None:
    limits = Limits(32, 16_000, 0.5)
    limits.shrink(16, 16_000, 12_000)
    assert limits.bytes == 12_000
