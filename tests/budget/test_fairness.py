"""Who gets how much, and how long anybody can wait, under load in virtual time."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterator

import pytest

from gpu_admission.budget.lanes import Lane
from gpu_admission.budget.ledger import Ledger
from gpu_admission.budget.ticket import Ticket
from tests.budget.simulation import Arrival, Simulation

Draw = Callable[[random.Random], float]


def uniform(least: float, most: float) -> Draw:
    return lambda chance: chance.uniform(least, most)


def arrivals(
    seed: int, rate: float, size: Draw, hold: Draw, *, lane: int = 0, flow: object = None, start: float = 0.0
) -> Iterator[Arrival]:
    """Poisson arrivals, ``rate`` a second."""
    chance = random.Random(seed)
    now = start
    while True:
        now += chance.expovariate(rate)
        yield Arrival(now, max(1, int(size(chance))), hold(chance), lane, flow)


@pytest.mark.parametrize(
    ("busy", "calm"),
    [
        pytest.param((uniform(10, 100), uniform(0, 10)), (uniform(10, 100), uniform(0, 10)), id="alike"),
        pytest.param((uniform(10, 50), uniform(0, 10)), (uniform(100, 600), uniform(0, 10)), id="small"),
        pytest.param((uniform(100, 600), uniform(0, 10)), (uniform(10, 50), uniform(0, 10)), id="large"),
        pytest.param((uniform(10, 100), uniform(0, 2)), (uniform(10, 100), uniform(0, 40)), id="short"),
        pytest.param((uniform(10, 100), uniform(0, 40)), (uniform(10, 100), uniform(0, 2)), id="long"),
    ],
)
def test_two_tenants_at_ten_to_one_get_equal_byte_seconds(
    busy: tuple[Draw, Draw], calm: tuple[Draw, Draw]
) -> None:
    """Both offer more than half of the whole, so that both are backlogged throughout."""
    ledger = Ledger([1000], max_waiting=100, max_waiting_per_flow=50)
    simulation = Simulation(ledger)
    chance = random.Random(0)
    mean = {
        name: sum(size(chance) * hold(chance) for _ in range(2000)) / 2000
        for name, (size, hold) in {"busy": busy, "calm": calm}.items()
    }
    load = heapq.merge(
        arrivals(1, 8000 / mean["busy"], *busy, flow="busy"),
        arrivals(2, 800 / mean["calm"], *calm, flow="calm"),
    )
    simulation.run(load, until=600.0)
    share = simulation.used["busy"] / (simulation.used["busy"] + simulation.used["calm"])
    assert share == pytest.approx(0.5, abs=0.025)
    assert sum(simulation.used.values()) > 0.8 * 1000 * 600


@pytest.mark.parametrize("users", [12, 40])
def test_ever_new_flows_do_not_keep_a_backlogged_one_from_its_share(users: int) -> None:
    """Each user has one request at a time, so that its flow is forgotten after each of them."""
    ledger = Ledger([100], max_waiting=200, max_waiting_per_flow=100)
    chance, numbers = random.Random(3), itertools.count()
    ends: list[tuple[float, int, Ticket]] = []
    used = {"tenant": 0.0, "users": 0.0}

    def start(granted: object, now: float) -> None:
        for ticket in granted:  # type: ignore[attr-defined]
            heapq.heappush(ends, (now + chance.uniform(0.5, 1.5), next(numbers), ticket))

    def ask(flow: object, now: float) -> None:
        start(ledger.request(Ticket(10, 0, flow), now), now)

    for flow in [*range(users), *["tenant"] * 40]:
        ask(flow, 0.0)
    while ends[0][0] < 300.0:
        now, _, ticket = heapq.heappop(ends)
        used["tenant" if ticket.flow == "tenant" else "users"] += ticket.bytes * (now - ticket.granted_at)
        start(ledger.release(ticket, now), now)
        ask("tenant" if ticket.flow == "tenant" else next(numbers), now)
    assert used["tenant"] / sum(used.values()) == pytest.approx(1 / (users + 1), rel=0.1)


def test_waiters_of_no_flow_share_as_one_flow_with_the_others() -> None:
    ledger = Ledger([100], max_waiting=10_000)
    simulation = Simulation(ledger)
    load = heapq.merge(
        arrivals(1, 20.0, uniform(5, 15), uniform(0.5, 1.5)),
        arrivals(2, 20.0, uniform(5, 15), uniform(0.5, 1.5), flow="named"),
    )
    simulation.run(load, until=200.0)
    share = simulation.used["named"] / sum(simulation.used.values())
    assert share == pytest.approx(0.5, abs=0.05)


LONGEST = 10.0
"""Of all holds: one service time."""


class Shortfall:
    """The longest time for which a lane waited for bytes inside its guarantee."""

    def __init__(self, ledger: Ledger, lane: int) -> None:
        self.lane = ledger.lanes[lane]
        self.since: float | None = None
        self.longest = 0.0

    def __call__(self, now: float) -> None:
        head = self.lane.head
        short = head is not None and self.lane.in_use + head.bytes <= self.lane.guaranteed
        if short and self.since is None:
            self.since = now
        if self.since is not None:
            self.longest = max(self.longest, now - self.since)
        if not short:
            self.since = None


@pytest.mark.parametrize(
    ("borrowed", "service_times"),
    [
        pytest.param(uniform(1, 5), 1, id="small"),
        pytest.param(uniform(20, 50), 1, id="middling"),
        pytest.param(uniform(30, 60), 1, id="all that the guarantee leaves"),
        pytest.param(uniform(61, 100), 2, id="too large to fit beside the guarantee"),
    ],
)
@pytest.mark.parametrize("priority", [0, 5])
def test_a_guarantee_is_honoured_within_one_service_time(
    borrowed: Draw, service_times: int, priority: int
) -> None:
    """However the borrowers' requests look. Two, where one of them is too large to fit beside it."""
    lanes = [Lane("batch", priority=priority), Lane("gold", guaranteed=0.4)]
    for seed in range(4):
        ledger = Ledger([100], lanes=lanes, max_waiting=5000)
        shortfall = Shortfall(ledger, 1)
        simulation = Simulation(ledger, watch=shortfall)
        mean = sum(borrowed(random.Random(n)) for n in range(500)) / 500
        load = heapq.merge(
            arrivals(seed, 30 / mean, borrowed, uniform(0, LONGEST)),
            arrivals(seed + 50, 3.0, uniform(1, 10), uniform(0, LONGEST), lane=1, start=40.0),
        )
        simulation.run(load, until=200.0)
        assert shortfall.longest <= service_times * LONGEST
        assert simulation.used[1] > 0.3 * 100 * 100


def worst_waits(ledger: Ledger, seed: int) -> list[tuple[float, float]]:
    """Of each that started: seconds from arrival, and from the front of its lane."""
    chance = random.Random(seed)
    lanes = len(ledger.lanes)
    load = []
    for lane in range(lanes):
        sizes: Draw = chance.choice([uniform(1, 5), uniform(1, 100), uniform(60, 100)])
        most = ledger.largest(lane)
        stream = arrivals(seed * 10 + lane, 2.0, sizes, uniform(0, LONGEST), lane=lane)
        load.append(arrival for arrival in stream if arrival.size <= most)
    simulation = Simulation(ledger)
    simulation.run(heapq.merge(*load), until=400.0)
    assert len(simulation.started) > 100
    return [
        (
            ticket.granted_at - ticket.arrived,
            ticket.granted_at - ticket.head_since if ticket.head_since else 0.0,
        )
        for ticket in simulation.started
    ]


@pytest.mark.parametrize("max_waiting", [1, 20])
@pytest.mark.parametrize("patience", [0.0, 5.0, 30.0])
def test_nobody_waits_longer_than_the_bound_in_one_lane(patience: float, max_waiting: int) -> None:
    """(waiters ahead + 1) x (``max_bypass_wait`` + the longest hold)."""
    for seed in range(5):
        ledger = Ledger([100], max_waiting=max_waiting, max_bypass=10**9, max_bypass_wait=patience)
        for waited, at_the_front in worst_waits(ledger, seed):
            assert at_the_front <= patience + LONGEST
            assert waited <= max_waiting * (patience + LONGEST)


@pytest.mark.parametrize("patience", [0.0, 5.0, 30.0])
def test_nobody_stays_at_the_front_of_a_lane_longer_than_the_bound(patience: float) -> None:
    """``max_bypass_wait`` + (lanes + 2) x the longest hold, whatever the lanes' shares and priorities.

    Once due, it waits for its own lane's limit (one hold), for the due heads of the other
    lanes that came to the front before it, and for its own room.
    """
    lanes = [
        Lane("gold", guaranteed=0.3, priority=9),
        Lane("narrow", limit=0.2, priority=-1),
        Lane("wide", priority=-9),
        Lane("silver", guaranteed=0.1, limit=0.6),
    ]
    for seed in range(8):
        ledger = Ledger([100], lanes=lanes, max_waiting=20, max_bypass=10**9, max_bypass_wait=patience)
        longest = max(at_the_front for _, at_the_front in worst_waits(ledger, seed))
        assert longest <= patience + (len(lanes) + 2) * LONGEST


def test_a_hundred_thousand_flows_leave_nothing_behind() -> None:
    ledger = Ledger([100], max_waiting=10**6)
    tickets = [Ticket(1, 0, f"tenant {n}") for n in range(100_000)]
    for now, ticket in enumerate(tickets):
        ledger.request(ticket, float(now))
    assert ledger.waiting == 100_000 - 100
    assert len(ledger.lanes[0]._flows) == 100_000
    for now, ticket in enumerate(tickets[50_000:] + tickets[:50_000]):
        ledger.release(ticket, 100_000.0 + now)
    assert (ledger.in_use, ledger.waiting, ledger.running) == (0, 0, 0)
    assert not ledger.lanes[0]._flows
    assert not ledger.lanes[0]._order
