"""One process's face of a shared budget, on a log in memory."""

from __future__ import annotations

import threading

import anyio
import anyio.lowlevel
import msgspec
import pytest

from gpu_admission.budget.lanes import Lane
from gpu_admission.budget.ticket import ENDED, GRANTED, NEW, REFUSED, WAITING, Ticket
from gpu_admission.shared.ledger import SharedLedger
from gpu_admission.shared.memory import MemoryHub, MemoryLog
from gpu_admission.shared.operations import (
    MOST_HELD,
    RULES,
    Adopt,
    End,
    Held,
    Terms,
    decode,
    encode,
    parts,
)
from gpu_admission.shared.outbox import Outbox
from gpu_admission.shared.process import Pulse
from gpu_admission.shared.protocol import LogAway
from gpu_admission.shared.terms import again
from tests.shared.hub import TERMS, Process, World

pytestmark = pytest.mark.anyio


def test_bytes_that_one_process_holds_are_not_free_in_another() -> None:
    world = World()
    first, second = world[0].ask(70), world[1].ask(40)
    assert (first.state, second.state) == (GRANTED, WAITING)
    assert world[1].held == 70


def test_bytes_given_back_in_one_process_wake_a_waiter_in_another() -> None:
    world = World()
    first, second = world[0].ask(70), world[1].ask(40)
    world[0].shared.release(first)
    assert first.state is ENDED
    assert world[1].log.woken.is_set()
    world.catch_up()
    assert second.state is GRANTED
    assert world[1].woken == [second]


def test_first_come_first_served_over_all_processes() -> None:
    world = World(3)
    first = world[0].ask(100)
    waiting = [world[n % 3].ask(60) for n in range(6)]
    world[0].shared.release(first)
    for ticket in waiting:
        world.catch_up()
        assert next(t.state for t in waiting if t.state is not ENDED) is GRANTED
        assert ticket.state is GRANTED
        world.processes[waiting.index(ticket) % 3].shared.release(ticket)
    world.catch_up()
    assert [process.held for process in world.processes] == [0, 0, 0]


async def test_a_request_that_fits_has_its_grant_when_it_returns() -> None:
    world = World()
    ticket = Ticket(30)
    await world[0].shared.request(ticket)
    assert ticket.state is GRANTED
    assert ticket.started


async def test_a_waiter_may_start_only_once_it_was_granted() -> None:
    world = World()
    first, second = world[0].ask(70), world[1].ask(40)
    assert not await world[1].shared.start_work(second)
    world[0].shared.release(first)
    world.catch_up()
    assert await world[1].shared.start_work(second)


async def test_a_request_cancelled_before_its_ask_came_back_holds_nothing() -> None:
    world = World(instant=False)
    world[0].log.deliver()
    ticket = Ticket(30)
    with anyio.move_on_after(0.01):
        await world[0].shared.request(ticket)
    for process in world.processes:
        process.log.deliver()
    assert world[0].held == world[1].held == 0


async def test_a_grant_older_than_half_a_ttl_is_read_again_before_it_starts() -> None:
    world = World()
    first, second = world[0].ask(70), world[1].ask(40)
    world[0].shared.release(first)
    world[1].log.catch_up()
    assert second.state is GRANTED
    # It stands still, and is declared dead. Its bytes go to another.
    world.pass_time(16.0, [world[0]])
    other = world[0].ask(100)
    assert other.state is GRANTED
    assert not await world[1].shared.start_work(second)
    assert second.state is WAITING
    assert world[1].held == 100


def test_a_process_that_was_declared_dead_claims_what_runs_while_it_still_rests() -> None:
    world = World()
    running = world[1].ask(40)
    assert running.state is GRANTED
    running.started = True
    world.pass_time(11.0, [world[0]])
    other = world[0].ask(70)
    assert other.state is WAITING, "the bytes of the dead rest"
    world[1].shared.pulse()
    world.pass_time(1.0)
    world.pass_time(20.0)
    assert other.state is WAITING
    assert world[1].shared.leases_lost == 1
    world[1].shared.release(running)
    world.catch_up()
    assert other.state is GRANTED
    assert world[0].held == world[1].held == 70


def test_a_process_that_comes_back_too_late_is_counted_above_the_limit_and_nothing_starts() -> None:
    world = World()
    running = world[1].ask(40)
    running.started = True
    world.pass_time(17.0, [world[0]])
    other = world[0].ask(70)
    assert other.state is GRANTED
    world[1].shared.pulse()
    world.catch_up()
    assert world[0].held == world[1].held == 110
    third = world[0].ask(1)
    assert third.state is WAITING
    world[1].shared.release(running)
    world.catch_up()
    assert third.state is GRANTED


def test_a_late_end_of_a_dead_membership_frees_nothing_of_others() -> None:
    world = World()
    running = world[1].ask(40)
    world.pass_time(17.0, [world[0]])
    other = world[0].ask(100)
    world[1].shared.release(running)
    world.catch_up()
    assert other.state is GRANTED
    assert world[0].held == 100


def test_bytes_of_a_killed_process_come_back_after_a_ttl_and_a_half() -> None:
    world = World()
    world[1].ask(40)
    waiting = world[0].ask(100)
    world.pass_time(14.5, [world[0]])
    assert waiting.state is WAITING
    world.pass_time(1.5, [world[0]])
    assert waiting.state is GRANTED


def test_bytes_of_a_process_known_to_have_died_come_back_at_once() -> None:
    world = World(knows_deaths=True)
    world[1].ask(40)
    world.pass_time(100.0, [world[0]])
    assert world[0].held == 40, "silence is no death where deaths are known"
    world.hub.dead.add("p1")
    world.clock.now += 0.3
    assert world[0].ask(100).state is GRANTED


def test_places_in_the_queue_of_a_dead_process_are_given_up() -> None:
    world = World(3)
    first = world[0].ask(70)
    ahead, behind = world[1].ask(90), world[2].ask(90)
    world.pass_time(16.0, [world[0], world[2]])
    world[0].shared.release(first)
    world.catch_up()
    assert behind.state is GRANTED
    world[1].shared.pulse()
    assert ahead.state is WAITING, "it lives, and asks again"


def test_a_lost_log_grants_nothing_until_all_have_declared_what_they_hold() -> None:
    world = World()
    running = world[0].ask(60)
    running.started = True
    world.hub.lose()
    new = world[1].ask(60)
    assert new.state is WAITING
    world.catch_up()
    assert world[1].held == 60
    world.pass_time(11.0)
    assert new.state is WAITING
    small = world[1].ask(10)
    assert small.state is GRANTED
    world[0].shared.release(running)
    world.catch_up()
    assert new.state is GRANTED


def test_a_log_that_is_away_keeps_requests_waiting_and_takes_them_on_its_return() -> None:
    world = World()
    world[0].log.cut()
    ticket = world[0].ask(30)
    assert ticket.state is NEW
    assert world[0].shared.away
    world[0].log.mend()
    assert ticket.state is GRANTED
    assert world[0].woken == [ticket]
    world.catch_up()
    assert world[1].held == 30


def test_what_ends_while_the_log_is_away_is_told_on_its_return() -> None:
    world = World()
    ticket = world[0].ask(30)
    world[0].log.cut()
    world[0].shared.release(ticket)
    world[0].log.mend()
    world.catch_up()
    assert world[1].held == 0


def test_an_entry_that_arrives_twice_counts_once() -> None:
    world = World()
    ticket = world[0].ask(30)
    said = world.hub.entries[-1].data
    world[0].shared.release(ticket)
    world.hub.add(said)
    world.catch_up()
    assert world[0].held == world[1].held == 0


def test_what_was_said_while_the_log_was_away_is_said_in_its_order() -> None:
    world = World()
    world[0].ask(80)
    world[0].log.cut()
    tickets = [world[0].ask(size) for size in (30, 10)]
    world[0].shared.release(tickets[0])
    world[0].log.mend()
    world.catch_up()
    assert tickets[1].state is GRANTED
    assert world[1].held == 90


def test_an_entry_that_was_lost_makes_its_process_join_again_and_nothing_is_leaked() -> None:
    world = World()
    ticket, kept = world[0].ask(30), world[0].ask(20)
    kept.started = True
    world[0].log.is_cut = True  # and nobody has noticed yet
    world[0].shared.release(ticket)
    world[0].log.is_cut = False
    world[0].ask(5)
    world.catch_up()
    assert world[0].held == world[1].held == 25


def test_a_share_may_be_granted_alone_while_the_log_is_away() -> None:
    world = World()
    lonely = Process(world.hub, world.clock, "p9", fallback=0.25)
    lonely.log.cut()
    assert [lonely.ask(20).state, lonely.ask(20).state] == [GRANTED, NEW]
    lonely.log.mend()
    world.catch_up()
    assert world[0].held == lonely.held == 40


def test_a_share_of_each_device_may_be_granted_alone() -> None:
    two = Terms((100, 60), lease_ttl=10.0)
    world = World(1, two)
    lonely = Process(world.hub, world.clock, "p9", two, fallback=0.25)
    lonely.log.cut()
    tickets = [lonely.ask(size) for size in (20, 15, 5, 5)]
    assert [(ticket.state, ticket.device) for ticket in tickets[:3]] == [
        (GRANTED, 0),
        (GRANTED, 1),
        (GRANTED, 0),
    ]
    assert tickets[3].state is NEW
    lonely.log.mend()
    world.catch_up()
    assert [account.in_use for account in world[0].shared.ledger.accounts] == [30, 15]


def test_a_share_that_is_smaller_than_a_request_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    world = World(1)
    lonely = Process(world.hub, world.clock, "p9", fallback=0.25)
    lonely.log.cut()
    caplog.clear()
    held = lonely.ask(20)
    assert lonely.ask(20).state is NEW
    assert not caplog.messages, "it fits once the first has ended"
    lonely.shared.release(held)
    lonely.ask(40)
    lonely.ask(50)
    (said,) = caplog.messages
    assert (
        "the shared budget memory is away, and a request of 40 B waits for it: shared_fallback=0.25" in said
    )
    assert "at most 25 B of a device" in said


def test_nothing_is_granted_alone_of_a_budget_that_is_drained() -> None:
    world = World(1)
    lonely = Process(world.hub, world.clock, "p9", fallback=0.25)
    lonely.shared.drain()
    lonely.log.cut()
    assert lonely.ask(20).state is NEW


def test_a_grant_taken_alone_that_has_ended_is_never_declared() -> None:
    world = World()
    lonely = Process(world.hub, world.clock, "p9", fallback=0.25)
    lonely.log.cut()
    lonely.shared.release(lonely.ask(20))
    lonely.log.mend()
    assert lonely.held == 0


def test_the_lowest_ceiling_of_all_processes_is_in_force_and_goes_with_its_process() -> None:
    world = World()
    world[0].shared.allow(0, ceiling=50)
    world[1].shared.allow(0, ceiling=80)
    world.catch_up()
    assert world[0].shared.ledger.accounts[0].limit == 50
    waiting = world[1].ask(60)
    assert waiting.state is WAITING
    world[0].shared.stop()
    world.catch_up()
    assert world[1].shared.ledger.accounts[0].limit == 80
    assert waiting.state is GRANTED


def test_a_new_capacity_is_in_force_everywhere_and_refuses_what_never_fits() -> None:
    world = World()
    world[0].ask(90)
    waiting = world[1].ask(80)
    world[0].shared.resize([70])
    world.catch_up()
    assert waiting.state is REFUSED
    assert world[1].woken == [waiting]
    assert world[1].shared.ledger.capacity == 70


def test_draining_the_budget_refuses_in_every_process_until_it_is_undone() -> None:
    world = World()
    world[0].ask(90)
    waiting = world[1].ask(80)
    world[0].shared.drain()
    world.catch_up()
    assert waiting.state is REFUSED
    assert world[1].ask(1).state is REFUSED
    world[1].shared.drain(closed=False)
    assert world[1].ask(1).state is GRANTED


def test_a_budget_that_was_drained_is_open_again_for_those_who_come_after_all_have_gone() -> None:
    world = World()
    world[0].shared.drain()
    for process in world.processes:
        process.shared.stop()
    late = Process(world.hub, world.clock, "p5")
    assert late.ask(10).state is GRANTED


def test_refusing_all_of_one_process_leaves_the_others_in_the_queue() -> None:
    world = World()
    world[0].ask(90)
    mine, others = world[0].ask(50), world[1].ask(50)
    world[0].shared.refuse_all()
    world.catch_up()
    assert (mine.state, others.state) == (REFUSED, WAITING)


def test_a_lease_may_shrink_and_grows_only_where_it_fits() -> None:
    world = World()
    ticket = world[0].ask(60)
    world[0].shared.change(ticket, 40)
    assert world[0].shared.grow(ticket, 120).says is False
    assert world[0].shared.grow(ticket, 90).says is True
    world.catch_up()
    assert world[1].held == 90


def test_a_process_that_leaves_with_work_running_keeps_its_bytes_until_that_ends() -> None:
    world = World()
    ticket = world[0].ask(60)
    ticket.started = True
    world[0].shared.stop()
    world.catch_up()
    assert world[1].held == 60
    world[0].shared.release(ticket)
    world.catch_up()
    assert world[1].held == 0
    assert [view.name for view in world[1].shared.members()] == ["p1.1"]


def test_the_newest_settings_are_in_force_and_both_sides_say_which_differ(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(1)
    newer = Process(world.hub, world.clock, "p7", Terms((100,), max_waiting=7, lease_ttl=10.0))
    world.catch_up()
    assert world[0].shared.ledger.lanes[0].max_waiting == 7
    assert "max_waiting=100 here, 7 in force" in caplog.text
    assert newer.shared.terms.max_waiting == 7


def test_an_older_process_that_joins_again_does_not_bring_its_settings_back() -> None:
    world = World(1)
    world.clock.now += 1
    newer = Process(world.hub, world.clock, "p7", Terms((100,), max_waiting=7, lease_ttl=10.0))
    world.pass_time(17.0, [newer])
    world[0].shared.pulse()
    world.catch_up()
    assert newer.shared.ledger.lanes[0].max_waiting == 7


def test_new_lanes_keep_what_is_held_and_who_waits() -> None:
    old = Terms((100,), (Lane("a"), Lane("b")), lease_ttl=10.0)
    world = World(2, old)
    held, waiting = world[0].ask(80, 1), world[1].ask(60, 0)
    newer = Process(world.hub, world.clock, "p7", Terms((100,), (Lane("b"), Lane("c"), Lane("a"))))
    world.catch_up()
    assert [lane.in_use for lane in newer.shared.ledger.lanes] == [80, 0, 0]
    assert [lane.waiting for lane in newer.shared.ledger.lanes] == [0, 0, 1]
    world[0].shared.release(held)
    world.catch_up()
    assert waiting.state is GRANTED
    assert world[1].ask(5, 1).lane == 0


@pytest.mark.parametrize("lost", [False, True])
def test_more_leases_than_one_entry_takes_are_declared_in_several(lost: bool) -> None:
    """The entry of all would be heard by nobody: the process could never take part again."""
    world = World(2, Terms((MOST_HELD + 2,)))
    held = [world[0].ask(1) for _ in range(MOST_HELD + 1)]
    for ticket in held:
        ticket.started = True
    waiting = world[1].ask(2)
    if lost:
        world.hub.lose()
    world.pass_time(0.5 if lost else 11.0, None if lost else [world[1]])
    world[0].shared.pulse()
    world.catch_up()
    assert world[0].shared.is_in
    world.pass_time(20.0)
    assert [process.held for process in world.processes] == [len(held)] * 2
    assert waiting.state is WAITING
    world[0].shared.release(held[0])
    world.catch_up()
    assert waiting.state is GRANTED


def test_an_old_membership_that_one_entry_can_not_claim_is_given_up() -> None:
    world = World(2, Terms((3 * MOST_HELD,)))
    held = [world[0].ask(1) for _ in range(MOST_HELD + 1)]
    for ticket in held:
        ticket.started = True
    with world[0].shared._turn:
        world[0].shared._member._enter()
    world.pass_time(12.0)
    assert [process.held for process in world.processes] == [len(held)] * 2
    assert len(world[1].shared.members()) == 2


def test_an_entry_takes_as_many_leases_as_one_is_ever_told() -> None:
    holds = parts((Held(n, 1, 0, 0, bytes(12), 1e3) for n in range(MOST_HELD + 1)), MOST_HELD)
    said = [encode("p0.1", 1, Adopt(part)) for part in holds]
    assert [len(part) for part in holds] == [MOST_HELD, 1]
    assert None not in map(decode, said)


def two_orders_of_lanes() -> World:
    """The lanes of the second process, the newest, have another order than those of the first."""
    world = World(1, Terms((100,), (Lane("a"), Lane("b")), lease_ttl=10.0))
    world.clock.now += 1
    newest = Terms((100,), (Lane("b"), Lane("c"), Lane("a")), lease_ttl=10.0)
    world.processes.append(Process(world.hub, world.clock, "p1", newest))
    world.catch_up()
    return world


@pytest.mark.parametrize("lost", [False, True])
def test_one_that_joins_again_keeps_its_lanes_whatever_their_order_in_force(lost: bool) -> None:
    world = two_orders_of_lanes()
    world[0].ask(80, 1).started = True
    world[0].ask(60, 0)
    if lost:
        world.hub.lose()
    world.pass_time(30.0 if lost else 16.0, None if lost else [world[1]])
    world[0].shared.pulse()
    world.catch_up()
    lanes = {lane.lane.name: (lane.in_use, lane.waiting) for lane in world[1].shared.ledger.lanes}
    assert lanes == {"a": (0, 1), "b": (80, 0), "c": (0, 0)}


def test_a_ticket_is_in_one_of_the_lanes_in_force_before_the_log_has_said_in_which() -> None:
    world = World(1)
    owner = Process(world.hub, world.clock, "p7", Terms((100,), (Lane("b"), Lane("c"), Lane("a"))))
    world.clock.now += 1
    Process(world.hub, world.clock, "p8", Terms((100,), (Lane("a"),)))
    owner.log.catch_up()
    owner.log.cut()
    asked, forced = owner.ask(5, 2), Ticket(5, 1)
    owner.shared.force(forced)
    assert (asked.state, asked.lane, forced.lane) == (NEW, 0, 0)
    owner.shared.force(asked)  # what is only watched is asked for first
    owner.log.mend()
    owner.shared.pulse()
    assert [held.lane for held in (asked, forced)] == [0, 0]


def test_settings_under_which_one_that_waits_can_never_fit_refuse_it() -> None:
    world = World(1)
    world[0].ask(80)
    large, small = world[0].ask(60), world[0].ask(40)
    world.clock.now += 1
    Process(world.hub, world.clock, "p7", msgspec.structs.replace(TERMS, capacities=(50,)))
    world.catch_up()
    assert (large.state, small.state) == (REFUSED, WAITING)


def test_one_that_joins_again_with_other_devices_keeps_its_own_terms() -> None:
    mine = given("max_waiting", capacities=(0, 0, 0))
    assert again(mine, Terms((100, 100))) is mine
    assert again(mine, Terms((100, 100, 50))).capacities == (100, 100, 50)


def test_the_end_of_a_ticket_that_is_not_its_own_is_not_taken_for_done() -> None:
    assert not World(1)[0].shared.own.end(Ticket(5))


def test_members_are_seen_with_what_they_hold() -> None:
    world = World()
    world[0].ask(70)
    world[1].ask(60)
    first, second = world[0].shared.members()
    assert (first.bytes, first.running, first.waiting, first.is_self) == (70, 1, 0, True)
    assert (second.bytes, second.waiting, second.is_self) == (0, 1, False)


def test_resident_bytes_of_all_members_are_summed() -> None:
    world = World(1)
    for name, size in (("a", 5), ("b", 7)):
        process = Process(world.hub, world.clock, name, use=lambda size=size: ((size,), ()))
        process.shared.pulse()
    world.catch_up()
    assert world[0].shared.replica.members.resident(0) == 12
    assert world[0].shared.replica.members.resident(1) == 0


def test_a_newcomer_starts_from_the_snapshot() -> None:
    world = World(2, long=5)
    held, waiting = world[0].ask(70), world[1].ask(60)
    for _ in range(5):
        world[0].shared.release(world[0].ask(1))
    assert len(world.hub.entries) <= 5
    newcomer = Process(world.hub, world.clock, "new")
    assert (newcomer.held, newcomer.shared.ledger.waiting) == (70, 1)
    behind = newcomer.ask(35)
    world[0].shared.release(held)
    world.processes.append(newcomer)
    world.catch_up()
    assert (waiting.state, behind.state) == (GRANTED, GRANTED)


def test_a_snapshot_that_others_have_overtaken_replaces_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(2, long=1 << 62)
    member, real = world[0].shared._member, world[0].shared._member.snapshot

    def overtaken() -> bytes:
        world.hub.add(b"")
        return real()

    monkeypatch.setattr(member, "snapshot", overtaken)
    world.hub.long = 1
    world[0].ask(1)
    assert world.hub.snapshot is None


def test_a_process_that_fell_behind_a_snapshot_goes_on_with_its_own_tickets() -> None:
    world = World(2, long=5)
    mine, waiting = world[1].ask(70), world[1].ask(60)
    for _ in range(6):
        world[0].shared.release(world[0].ask(1))
    world[0].shared.pulse()
    world.catch_up()
    assert world[1].shared.ledger.waiting == 1
    world[1].shared.release(mine)
    assert waiting.state is GRANTED
    world.catch_up()
    assert world[0].held == 60


def test_a_refusal_in_a_part_of_the_log_that_was_never_read_is_seen() -> None:
    world = World(2, long=3)
    world[1].ask(70)
    waiting = world[1].ask(60)
    world[0].shared.resize([50])
    world[0].shared.resize([80])
    world[0].shared.pulse()
    world.catch_up()
    assert waiting.state is REFUSED
    assert waiting in world[1].woken


def test_after_stop_nothing_is_admitted() -> None:
    world = World()
    world[0].shared.stop()
    assert world[0].ask(1).state is REFUSED


def test_terms_are_the_ones_that_were_given() -> None:
    assert World(1)[0].shared.terms is TERMS


async def test_a_request_comes_back_from_another_thread() -> None:
    world = World(1, instant=False)
    world[0].log.deliver()
    ticket = Ticket(30)
    thread = threading.Timer(0.05, world[0].log.deliver)
    thread.start()
    await world[0].shared.request(ticket)
    thread.join()
    assert ticket.started


async def test_a_grant_that_came_late_is_confirmed_before_it_starts() -> None:
    world = World(1, instant=False)
    world[0].log.deliver()
    ticket = Ticket(30)
    world[0].shared.ask(ticket)
    world.clock.now += 6.0
    world[0].log.deliver()
    assert ticket.state is GRANTED
    thread = threading.Timer(0.05, world[0].log.deliver)
    thread.start()
    assert await world[0].shared.start_work(ticket)
    thread.join()


async def test_nothing_starts_while_the_log_is_away() -> None:
    world = World()
    ticket = world[0].ask(30)
    world.clock.now += 6.0
    world[0].log.cut()
    assert not await world[0].shared.start_work(ticket)


def test_growth_is_answered_when_it_has_come_back() -> None:
    world = World(1, instant=False)
    world[0].log.deliver()
    ticket = world[0].ask(30)
    world[0].log.deliver()
    answer = world[0].shared.grow(ticket, 60)
    assert answer.wait(0.01) is None
    world[0].log.deliver()
    assert (answer.says, ticket.bytes) == (True, 60)
    world[0].shared.release(ticket)
    assert world[0].shared.grow(ticket, 80).says is False, "it has ended"
    world[0].shared.change(ticket, 80)
    world[0].log.deliver()
    assert world[0].held == 0


def test_growth_that_the_log_was_lost_with_is_answered_by_nobody() -> None:
    world = World(1, instant=False)
    world[0].log.deliver()
    ticket = world[0].ask(30)
    world[0].log.deliver()
    ticket.started = True
    answer = world[0].shared.grow(ticket, 60)
    world.hub.lose()
    world[0].shared.change(ticket, 20)
    world.hub.instant = True
    world.catch_up()
    assert (answer.is_given, answer.says) == (True, None)
    assert ticket.bytes == world[0].held == 20, "the size told last is declared, though it was lost too"


def test_growth_from_the_middle_of_another_change_is_asked_for_after_it() -> None:
    world = World(1)
    ticket = world[0].ask(30)
    with world[0].shared._turn, world[0].shared._turn:
        answer = world[0].shared.grow(ticket, 60)
        assert not answer.is_given
    assert (answer.says, ticket.bytes) == (True, 60)


async def test_a_grant_to_be_confirmed_when_its_process_is_declared_dead_waits_for_nothing() -> None:
    world = World(2, instant=False)
    world[0].log.deliver()
    world[1].log.deliver()
    ticket = Ticket(30)
    world[0].shared.ask(ticket)
    world.clock.now += 6.0
    world[0].log.deliver()
    started: list[bool] = []

    async def start() -> None:
        started.append(await world[0].shared.start_work(ticket))

    async with anyio.create_task_group() as group:
        with anyio.fail_after(10):
            group.start_soon(start)
            await anyio.wait_all_tasks_blocked()
            world.hub.instant = True
            world.hub.lose()
            world.catch_up()
            while not started:
                await anyio.lowlevel.checkpoint()
    assert started == [False], "it was asked for again"


def test_what_piles_up_while_the_log_is_away_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_admission.shared.outbox.MOST_UNSAID", 3)
    world = World(1)
    world[0].log.cut()
    for _ in range(3):
        world[0].ask(1)
    with pytest.raises(LogAway, match="have not come back"):
        world[0].ask(1)


def piled_up(monkeypatch: pytest.MonkeyPatch) -> tuple[World, Ticket]:
    """Two processes, one of them cut off until nothing more may pile up in it; a lease of that one."""
    monkeypatch.setattr("gpu_admission.shared.outbox.MOST_UNSAID", 3)
    world = World()
    lease = world[0].ask(40)
    assert world[0].shared.may_start(lease)
    world[0].log.cut()
    for _ in range(3):
        world[0].ask(1)
    return world, lease


def test_what_holds_bytes_goes_on_when_too_much_has_piled_up_and_is_declared_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In mode "shadow" every request would fail otherwise, and its bytes would be counted for ever."""
    world, lease = piled_up(monkeypatch)
    forced = Ticket(15)
    world[0].shared.force(forced)
    world[0].shared.change(lease, 20)
    world[0].shared.allow(0, ceiling=60)
    world[0].log.mend()
    world.catch_up()
    assert world[0].held == world[1].held == 20 + 15 + 3
    assert world[1].shared.ledger.accounts[0].ceiling == 60
    assert [member.name for member in world[1].shared.members()] == ["p1.1", "p0.2"]
    for ticket in (lease, forced, *world[0].shared.own):
        world[0].shared.release(ticket)
    world.catch_up()
    assert world[0].held == world[1].held == 0


def test_a_process_with_too_much_unsaid_can_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    world, lease = piled_up(monkeypatch)
    world[0].shared.release(lease)
    world[0].shared.stop()
    assert "p0" not in world.hub.logs


def test_before_the_log_was_joined_the_ledger_is_empty() -> None:
    ledger = SharedLedger(MemoryLog(MemoryHub()), TERMS).ledger
    assert (ledger.in_use, ledger.capacity) == (0, 100)


def test_stopping_gives_up_what_waits() -> None:
    world = World()
    world[0].ask(70)
    waiting = world[1].ask(60)
    world[1].shared.stop()
    assert waiting.state is ENDED
    assert world[1].shared.pulse() == 0.0


def test_a_process_that_is_stopped_twice_has_left_once() -> None:
    world = World()
    world[0].shared.stop()
    said = world.hub.end
    world[0].shared.stop()
    assert world[0].shared.has_left
    assert world.hub.end == said


def test_flows_of_equal_names_are_one_flow_in_all_processes() -> None:
    world = World()
    first, second = world[0].ask(10, flow="tenant"), world[1].ask(10, flow="tenant")
    assert first.flow == second.flow
    assert b"tenant" not in first.flow
    assert world[0].ask(10, flow="other").flow != first.flow


def test_another_version_of_the_rules_refuses_to_start_and_names_both() -> None:
    world = World(1)
    world.hub.add(msgspec.msgpack.encode((RULES + 1, "new.1", 1, [])))
    with pytest.raises(ValueError, match=f"follows version {RULES + 1} of the rules, this process {RULES}"):
        Process(world.hub, world.clock, "p9")


def test_a_lease_that_ends_in_the_middle_of_another_call_is_ended_after_it() -> None:
    """The garbage collector closes what held it, in the thread that is just reading the log."""
    world = World(1)
    ended, running = world[0].ask(30), world[0].ask(20)
    with world[0].shared._turn:
        world[0].shared.release(ended)
        world[0].shared.release(ended)
        assert ended.state is GRANTED
    assert (ended.state, running.state) == (ENDED, GRANTED)
    assert world[0].held == 20


def test_what_is_changed_or_said_in_the_middle_of_another_call_is_done_after_it() -> None:
    world = World(1)
    ticket = world[0].ask(30)
    with world[0].shared._turn:
        world[0].shared.change(ticket, 20)
        world[0].shared.drain()
        assert ticket.bytes == 30
    assert ticket.bytes == 20
    assert world[0].ask(1).state is REFUSED


def test_a_drained_budget_stays_drained_under_new_settings() -> None:
    world = World(1)
    world[0].shared.drain()
    newer = Process(world.hub, world.clock, "p7", Terms((100,), max_waiting=7, lease_ttl=10.0))
    assert newer.ask(1).state is REFUSED


def test_work_that_has_begun_may_go_on_without_the_log() -> None:
    world = World(1)
    ticket = world[0].ask(30)
    assert world[0].shared.may_start(ticket)
    world[0].log.cut()
    world.clock.now += 60
    assert world[0].shared.may_start(ticket)


def test_what_is_held_without_asking_has_a_flow_that_names_nobody() -> None:
    world = World()
    ticket = Ticket(30, 0, "tenant")
    world[0].shared.force(ticket)
    world.catch_up()
    assert world[1].held == 30
    assert b"tenant" not in ticket.flow


def test_a_beat_that_fails_is_logged_and_followed_by_the_next(caplog: pytest.LogCaptureFixture) -> None:
    """Without beats a living process would be taken for dead."""
    beats: list[int] = []
    over = threading.Event()

    def beat() -> float:
        beats.append(1)
        if len(beats) == 1:
            raise RuntimeError("use() failed")
        over.set()
        return 0.0

    pulse = Pulse(beat, lambda seconds: None)
    pulse.start()
    assert over.wait(30)
    pulse.stop()
    pulse.join(30)
    assert "use() failed" in caplog.text
    assert "a beat of the shared budget failed" in caplog.text


def test_deaths_are_not_told_again_and_again_while_the_log_is_away() -> None:
    world = World(2, knows_deaths=True)
    world.hub.dead.add("p1")
    world[0].log.cut()
    for _ in range(50):
        world.clock.now += 1
        world[0].shared.pulse()
    assert len(world[0].shared._member.outbox) == 0
    world[0].log.mend()
    world[0].shared.pulse()
    assert [member.is_self for member in world[0].shared.members()] == [True]


async def test_a_grant_that_comes_back_too_late_is_confirmed_before_its_request_returns() -> None:
    world = World(1, instant=False)
    process = world[0]
    process.log.deliver()
    ticket = Ticket(60)
    async with anyio.create_task_group() as group:
        group.start_soon(process.shared.request, ticket)
        await anyio.wait_all_tasks_blocked()
        world.clock.now += 6.0
        process.log.deliver()
        assert ticket.state is GRANTED
        assert not ticket.started
        await anyio.wait_all_tasks_blocked()
        process.log.deliver()
    assert ticket.started


async def test_what_has_come_back_meanwhile_is_not_waited_for() -> None:
    process = World(1)[0]
    ticket = process.ask(60)
    with anyio.fail_after(10):
        await process.shared._come_back(ticket)


def test_what_the_log_has_already_is_not_said_again() -> None:
    box = Outbox("p", lambda: 0.0)
    box.enter()
    said = [box.say(End(number)) for number in range(3)]
    assert box.again(2) == said[2:]
    assert len(box) == 1


def test_strangers_are_not_woken_and_break_nothing() -> None:
    world = World(2)
    world[0].log.wake(["stranger", "p1"])
    assert world[1].log.woken.is_set()


def given(*names: str, **settings: object) -> Terms:
    """Terms of which only ``names`` were given."""
    left = tuple(name for name in TERMS.__struct_fields__ if name not in names)
    return msgspec.structs.replace(TERMS, **settings, defaults=left)


def test_settings_that_were_not_given_leave_those_in_force_whoever_comes_last() -> None:
    world = World(1, given("capacities", "max_waiting", max_waiting=7))
    for terms in (given(), given("max_bypass", max_bypass=3), given("max_waiting", max_waiting=9)):
        Process(world.hub, world.clock, f"q{world.clock.now}", terms)
        world.clock.now += 1
    world.catch_up()
    ledger = world[0].shared.ledger
    assert (ledger.capacity, ledger.lanes[0].max_waiting, ledger.order.max_bypass) == (100, 9, 3)


def test_after_a_loss_of_the_log_each_setting_is_as_it_was_whoever_joins_again_first() -> None:
    world = World(1, given("capacities", capacities=(70,)))
    world.clock.now += 1
    guest = Process(world.hub, world.clock, "guest", given("max_waiting", capacities=(0,), max_waiting=7))
    world.catch_up()
    world.hub.lose()
    for process in (guest, world[0]):
        process.shared.pulse()
    world.catch_up()
    for process in (guest, world[0]):
        assert process.shared.ledger.capacity == 70
        assert process.shared.ledger.lanes[0].max_waiting == 7


def test_what_is_measured_counts_only_while_no_capacity_was_given_and_none_is_given_back_to_measuring() -> (
    None
):
    measuring = given(capacities=(0,))
    world = World(2, measuring)
    world[0].shared.allow(0, capacity=80)
    assert not world[0].shared.replica.is_given
    assert world[0].shared.ledger.capacity == 80
    world[1].shared.resize([60])
    world.catch_up()
    world[0].shared.allow(0, capacity=90)
    newcomer = Process(world.hub, world.clock, "p7", measuring)
    assert newcomer.shared.replica.is_given
    assert newcomer.shared.ledger.capacity == 60


def test_of_different_settings_both_sides_are_warned(caplog: pytest.LogCaptureFixture) -> None:
    world = World(1)
    Process(world.hub, world.clock, "p7", Terms((50,), max_waiting=7, lease_ttl=10.0))
    (newcomer,) = [record.getMessage() for record in caplog.records]
    assert "those of this one, the newest, are in force for all" in newcomer
    assert "capacity=50 B here, 100 B before; max_waiting=7 here, 100 before" in newcomer
    caplog.clear()
    world.catch_up()
    (other,) = [record.getMessage() for record in caplog.records]
    assert "capacity=100 B here, 50 B in force; max_waiting=100 here, 7 in force" in other


def test_the_numbers_of_the_warning_are_those_in_force(caplog: pytest.LogCaptureFixture) -> None:
    world = World(1)
    world[0].shared.resize([80])
    Process(world.hub, world.clock, "p7", msgspec.structs.replace(TERMS, max_waiting=7))
    assert world[0].shared.ledger.capacity == 80
    changed, differs = [record.getMessage() for record in caplog.records]
    assert "are in force for all: max_waiting=7 here, 100 before. Give" in changed
    assert "in force: capacity=100 B here, 80 B in force. Give" in differs
