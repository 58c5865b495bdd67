"""No order of readings and leases gives out what is not there, or counts a lease twice.

Random programs drive a whole admission: leases that fill up slowly, an allocator that keeps
what was freed, other processes that come and go, and looks at the devices whenever they
happen. What is granted is compared with what is true.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from gpu_admission import Admission, Lease, Rejected
from gpu_admission.guards import MemoryGuard
from gpu_admission.types import DeviceReading, Estimate
from tests.cards import Card, HandClock, look

pytestmark = pytest.mark.usefixtures("by_hand")


class Work:
    """A lease, and how much of it its work has filled by now."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.filled = 0


class Gpu(Card):
    """A card whose facts follow from the work on it; it tells the fields in ``told``."""

    told: tuple[str, ...] = ("ours",)

    def __init__(self, name: str, total: int, resident: int, context: int) -> None:
        super().__init__(HandClock(), total, name=name, resident=resident + context)
        self.context = context
        self.cache: int = 0
        self.works: list[Work] = []

    @property
    def held(self) -> int:
        return sum(work.lease.bytes for work in self.works)

    @property
    def truth(self) -> int:
        """Bytes that leases can have together: what others, weights and context leave."""
        return (self.total or 0) - self.foreign - self.resident

    @property
    def free(self) -> int:
        return (self.total or 0) - self.foreign - self.ours

    def fill(self, work: Work, share: float) -> None:
        wanted = max(work.filled, int(work.lease.bytes * share))
        from_cache = min(wanted - work.filled, self.cache)
        fresh = min(wanted - work.filled - from_cache, self.free)
        self.cache -= from_cache
        work.filled += from_cache + fresh
        self.filled += from_cache + fresh

    def end(self, work: Work, kept: float) -> None:
        work.lease.release()
        self.works.remove(work)
        self.filled -= work.filled
        self.cache += int(work.filled * kept)

    def read(self) -> DeviceReading:
        whole = super().read()
        facts: dict[str, Any] = {
            "ours": whole.ours,
            "reserved": (whole.reserved or 0) - self.context,
            "allocated": (whole.allocated or 0) - self.context,
        }
        return DeviceReading(
            total=whole.total,
            used=whole.used,
            free=whole.free,
            taken_at=whole.taken_at,
            **{name: facts[name] for name in self.told},
        )


class Machine(RuleBasedStateMachine):
    """One admission on two cards."""

    told: tuple[str, ...] = ("ours",)

    @initialize(
        totals=st.lists(st.integers(1_000, 100_000), min_size=2, max_size=2),
        resident=st.integers(0, 300),
        context=st.integers(0, 300),
        reserve=st.integers(0, 100),
        margin=st.sampled_from([0, 0.1]),
    )
    def power_on(self, totals: list[int], resident: int, context: int, reserve: int, margin: float) -> None:
        self.reserve, self.margin = reserve, margin
        self.gpus = [Gpu(f"card {n}", total, resident, context) for n, total in enumerate(totals)]
        for gpu in self.gpus:
            gpu.told = self.told
        self.admission = Admission(
            devices=self.gpus,
            guards=[MemoryGuard(watermark=0, reclaim=None)],
            estimator=1,
            reserve=reserve,
            margin=margin,
        )
        self.allowed: list[int] = []
        anyio.run(self.admission.startup.begin)
        self.capacities = [device.capacity for device in self.admission.snapshot().devices]

    def available(self, gpu: Gpu) -> int:
        """Most bytes that leases may really hold on ``gpu``, reserve and margin aside."""
        return int(max(0, gpu.truth - self.reserve) * (1 - self.margin))

    # what happens

    @rule()
    def look(self) -> None:
        look(self.admission)

    @rule(share=st.floats(0.001, 1.0))
    def ask(self, share: float) -> None:
        size = max(1, int(max(self.capacities) * share))
        limits = [account.limit for account in self.admission.locked.ledger.accounts]
        try:
            lease: Lease = anyio.run(self._acquire, size)
        except Rejected:
            return
        gpu = self.gpus[lease.device_index]
        gpu.works.append(Work(lease))
        assert gpu.held <= limits[lease.device_index], "no more than was allowed when it was granted"

    async def _acquire(self, size: int) -> Lease:
        return await self.admission.entrance.acquire(Estimate(size), timeout=0)

    def _some_work(self, index: int) -> tuple[Gpu, Work]:
        works = [(gpu, work) for gpu in self.gpus for work in gpu.works]
        return works[index % len(works)]

    def _anything_runs(self) -> bool:
        return any(gpu.works for gpu in self.gpus)

    @precondition(_anything_runs)
    @rule(index=st.integers(0, 30), share=st.floats(0, 1))
    def fill(self, index: int, share: float) -> None:
        gpu, work = self._some_work(index)
        gpu.fill(work, share)

    @precondition(_anything_runs)
    @rule(index=st.integers(0, 30), share=st.floats(0, 1))
    def shrink(self, index: int, share: float) -> None:
        _, work = self._some_work(index)
        work.lease.resize(max(work.filled, int(work.lease.bytes * share)))

    @precondition(_anything_runs)
    @rule(index=st.integers(0, 30), kept=st.floats(0, 1))
    def end(self, index: int, kept: float) -> None:
        gpu, work = self._some_work(index)
        gpu.end(work, kept)

    @rule(index=st.integers(0, 1), share=st.floats(0, 1))
    def others(self, index: int, share: float) -> None:
        gpu = self.gpus[index]
        gpu.foreign = int((gpu.foreign + gpu.free) * share)

    # what must hold

    @invariant()
    def what_is_given_out_is_there(self) -> None:
        for gpu, account, capacity in self._fresh():
            assert account.limit == max(1, min(capacity, self.available(gpu)))

    @invariant()
    def the_books_are_right(self) -> None:
        for gpu, account in zip(self.gpus, self.admission.locked.ledger.accounts, strict=True):
            assert account.in_use == gpu.held

    def _fresh(self) -> Iterator[tuple[Gpu, Any, int]]:
        """Cards, accounts and capacities, with what two looks in a row have shown in force."""
        look(self.admission, 2)
        yield from zip(self.gpus, self.admission.locked.ledger.accounts, self.capacities, strict=True)


class ByAllocator(Machine):
    told = ("reserved", "allocated")


class ByBoth(Machine):
    told = ("ours", "reserved", "allocated")


class Silent(Machine):
    """Nothing tells what is ours, as in a container: then a lease is still never counted twice."""

    told = ()

    @invariant()
    def what_is_given_out_is_there(self) -> None:
        for gpu, account, capacity in self._fresh():
            assert account.limit >= max(1, min(capacity, self.available(gpu)))


class SeldomLooking(Machine):
    """Looks come when they come: what was allowed last is never passed, however old it is."""

    @invariant()
    def what_is_given_out_is_there(self) -> None:
        """Only between looks: others may have come since, which nobody could know."""

    @rule()
    def look(self) -> None:
        super().look()
        look(self.admission)
        for gpu, account in zip(self.gpus, self.admission.locked.ledger.accounts, strict=True):
            assert account.limit <= max(1, self.available(gpu))
            assert account.free <= max(1, self.available(gpu)) - gpu.held


@pytest.mark.parametrize("machine", [Machine, ByAllocator, ByBoth, Silent, SeldomLooking])
def test_no_order_of_readings_and_leases_gives_out_what_is_not_there(machine: type[Machine]) -> None:
    run_state_machine_as_test(
        machine, settings=settings(max_examples=25, stateful_step_count=20, deadline=None)
    )
