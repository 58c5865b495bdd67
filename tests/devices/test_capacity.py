from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from gpu_admission.devices import Baseline, FixedDevice, ceiling, find_baseline, measure, room
from gpu_admission.devices.capacity import free_bytes, reusable_cache
from gpu_admission.guards import MemoryGuard
from gpu_admission.guards.verdict import limit_of
from gpu_admission.types import DeviceReading

GIB = 2**30


def reading(**fields: int | str | None) -> DeviceReading:
    return DeviceReading(**fields)  # type: ignore[arg-type]


def test_every_term_of_a_measured_capacity_is_shown() -> None:
    measured = measure(
        reading(total=24 * GIB, used=6 * GIB, ours=5 * GIB, reserved=4 * GIB, allocated=3 * GIB),
        name="cuda:0",
        reserve=2 * GIB,
    )
    # 24 - 2 reserve - 1 foreign - (5 ours - 1 of cache) = 17, less a tenth
    assert measured.bytes == int(17 * GIB * 0.9)
    assert measured.explanation == (
        "cuda:0: capacity 15.30 GiB = (24.00 GiB total - 2.00 GiB reserve - 1.00 GiB foreign "
        "- 4.00 GiB resident) less a margin of 10%"
    )
    assert measured.baseline == Baseline(6 * GIB, 4 * GIB, "ours")


def test_a_percentage_is_of_the_whole_device() -> None:
    measured = measure(FixedDevice(100).read(), name="x", share=0.85, margin=0)
    assert (measured.bytes, measured.reserve) == (85, 15)


def test_memory_that_is_not_to_be_relied_on_is_shown_apart() -> None:
    wddm = reading(total=24 * GIB, usable=12 * GIB, used=2 * GIB, reserved=0, allocated=0)
    measured = measure(wddm, name="cuda:0", margin=0)
    assert measured.bytes == 10 * GIB
    assert "- 12.00 GiB not to be relied on - 2.00 GiB foreign - 0 B resident" in measured.explanation


def test_what_nobody_owns_up_to_is_in_use() -> None:
    measured = measure(reading(total=100, used=30), name="x", margin=0)
    assert measured.bytes == 70
    assert "- 30 B in use (whose is not told)" in measured.explanation


def test_resident_can_be_told_where_a_pool_hides_it() -> None:
    pool = reading(total=100, used=90, ours=80)
    assert measure(pool, name="x", margin=0).bytes == 10
    assert measure(pool, name="x", margin=0, resident=20).bytes == 70


def test_a_device_that_tells_nothing_can_not_be_measured() -> None:
    with pytest.raises(
        ValueError, match=r"can't be measured on cuda:0: Unknown Error; give capacity in bytes"
    ):
        measure(reading(error="Unknown Error"), name="cuda:0")
    with pytest.raises(ValueError, match="it does not tell its memory"):
        measure(reading(total=5), name="cuda:0")


def test_a_device_with_nothing_left_says_why() -> None:
    with pytest.raises(ValueError, match=r"nothing is left on x: .*100 B foreign"):
        measure(reading(total=100, used=100, ours=0), name="x")


def test_unknown_is_never_zero() -> None:
    assert free_bytes(reading(total=5)) is None
    assert reusable_cache(reading(reserved=5)) is None
    assert reusable_cache(reading(reserved=5, allocated=7)) == 0
    assert find_baseline(reading(used=5, free=3)) is None
    told, silent = reading(total=100, used=10, ours=5), reading(total=100, used=10)
    baseline = find_baseline(told)
    assert baseline is not None
    assert room(silent, baseline) is None
    assert room(reading(total=100), baseline) is None
    assert ceiling(silent, baseline, capacity=50) is None


def test_our_own_leases_are_not_foreign_use() -> None:
    baseline = Baseline(used=0, resident=0, source="ours")
    assert ceiling(reading(total=100, used=40, ours=40), baseline, capacity=100) == 100


def test_at_most_what_is_really_free_is_given_out() -> None:
    at_start = reading(total=80, used=60, ours=0)
    baseline = find_baseline(at_start)
    assert baseline is not None
    assert ceiling(at_start, baseline, capacity=60) == 20
    assert ceiling(reading(total=80, used=5, ours=0), baseline, capacity=60) == 60
    assert ceiling(reading(total=80, used=75, ours=0), baseline, capacity=60) == 5


def test_a_first_look_while_leases_run_does_not_take_them_for_resident() -> None:
    assert find_baseline(reading(total=100, used=50, ours=45, held=30)) == Baseline(20, 15, "ours")
    assert find_baseline(reading(total=100, used=20, held=30)) == Baseline(0)


class Card(RuleBasedStateMachine):
    """A card with weights, leases that fill slowly, an allocator that keeps what was freed, and others.

    Compared after every step: what the guard allows, and what is true.
    """

    told: tuple[str, ...] = ("ours",)

    @initialize(total=st.integers(1_000, 100_000), context=st.integers(0, 300), weights=st.integers(0, 300))
    def power_on(self, total: int, context: int, weights: int) -> None:
        self.total, self.context, self.weights = total, context, weights
        self.foreign = self.cache = 0
        self.leases: list[list[int]] = []
        self.readings: list[DeviceReading] = []
        self.capacity = total
        self.measured = measure(self.look(), name="card", margin=0)
        self.capacity = self.measured.bytes
        self.guard = MemoryGuard(watermark=0, reclaim=None)
        self.guard.begin(self.measured)
        self.allowed = self.capacity
        self.read()

    @property
    def held(self) -> int:
        return sum(size for size, _ in self.leases)

    @property
    def filled(self) -> int:
        return sum(filled for _, filled in self.leases)

    @property
    def truth(self) -> int:
        """Bytes that leases can have: all but what others and our weights and context take."""
        return self.total - self.foreign - self.context - self.weights

    def look(self) -> DeviceReading:
        allocated = self.weights + self.filled
        reserved = allocated + self.cache
        ours = self.context + reserved
        facts: dict[str, Any] = {"ours": ours, "reserved": reserved, "allocated": allocated}
        used = self.foreign + ours
        return DeviceReading(
            total=self.total,
            used=used,
            free=self.total - used,
            taken_at=1.0,
            capacity=self.capacity,
            held=self.held,
            **{name: facts[name] for name in self.told},
        )

    @rule()
    def read(self) -> None:
        self.readings.append(self.look())
        answer = limit_of(self.guard, self.readings[-32:], (), 1.0).bytes
        self.allowed = self.capacity if answer is None else answer

    @rule(share=st.floats(0.01, 1.0))
    def admit(self, share: float) -> None:
        size = max(1, int(self.capacity * share))
        if self.held + size <= self.allowed:
            self.leases.append([size, 0])

    @precondition(lambda self: self.leases)
    @rule(index=st.integers(0, 10), share=st.floats(0, 1))
    def fill(self, index: int, share: float) -> None:
        lease = self.leases[index % len(self.leases)]
        wanted = max(lease[1], int(lease[0] * share))
        grown = wanted - lease[1]
        from_cache = min(grown, self.cache)
        if grown - from_cache <= self.total - self.look().used:  # type: ignore[operator]
            self.cache -= from_cache
            lease[1] = wanted

    @precondition(lambda self: self.leases)
    @rule(index=st.integers(0, 10), kept=st.floats(0, 1))
    def end(self, index: int, kept: float) -> None:
        _, filled = self.leases.pop(index % len(self.leases))
        self.cache += int(filled * kept)

    @rule(share=st.floats(0, 1))
    def others(self, share: float) -> None:
        free = self.total - self.look().used  # type: ignore[operator]
        self.foreign = int((self.foreign + free) * share)

    @invariant()
    def a_fresh_ceiling_is_the_truth(self) -> None:
        self.read()
        self.read()
        truth = max(1, min(self.capacity, self.truth))
        assert self.allowed == truth
        assert self.allowed - self.held <= max(1, self.truth) - self.held


class CardByAllocator(Card):
    told = ("reserved", "allocated")


class CardWithAll(Card):
    told = ("ours", "reserved", "allocated")


class SilentCard(Card):
    """Nothing tells what is ours, as in a container: then a lease is still never counted twice."""

    told = ()

    @invariant()
    def a_fresh_ceiling_is_the_truth(self) -> None:
        self.read()
        self.read()
        assert self.allowed >= max(1, min(self.capacity, self.truth))

    @precondition(lambda self: not self.leases)
    @rule(share=st.floats(0, 1))
    def hog(self, share: float) -> None:
        """Growth beyond the most that leases ever held is seen for what it is."""
        peak = self.guard._peak
        self.others(share)
        self.read()
        self.read()
        unexplained = self.look().used - self.measured.baseline.used - peak  # type: ignore[operator]
        assert self.allowed == max(1, self.capacity - max(0, unexplained))


@pytest.mark.parametrize("machine", [Card, CardByAllocator, CardWithAll, SilentCard])
def test_no_order_of_readings_and_leases_counts_a_lease_twice_or_promises_what_others_have(
    machine: type[Card],
) -> None:
    run_state_machine_as_test(
        machine, settings=settings(max_examples=60, stateful_step_count=30, deadline=None)
    )


@given(
    total=st.integers(1, 10**12),
    foreign=st.integers(0, 10**12),
    ours=st.integers(0, 10**12),
    margin=st.floats(0, 0.5),
    reserve=st.integers(0, 10**9),
)
def test_at_the_start_the_ceiling_is_the_measured_capacity(
    total: int, foreign: int, ours: int, margin: float, reserve: int
) -> None:
    used = min(total, foreign + ours)
    look = reading(total=total, used=used, ours=min(ours, used))
    try:
        measured = measure(look, name="x", margin=margin, reserve=reserve)
    except ValueError:
        return
    again = ceiling(look, measured.baseline, capacity=measured.bytes, reserve=reserve, margin=margin)
    assert again == measured.bytes
