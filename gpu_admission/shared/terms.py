"""The settings in force for all processes: how a ledger adopts new ones.

Owns what happens to waiting and held tickets when settings change under them. Whose settings are
the newest is the replica's business.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gpu_admission.budget.ledger import Ledger
from gpu_admission.budget.placement import POLICIES, most_free
from gpu_admission.budget.ticket import NEW, REFUSED, Ticket
from gpu_admission.shared.operations import TERMS, Terms
from gpu_admission.sizes import format_bytes

logger = logging.getLogger("gpu_admission")


def agree(
    force: Terms | None, since: Mapping[str, float], said: Terms, at: float
) -> tuple[Terms, Mapping[str, float]]:
    """What is in force once a process has ``said`` its terms, which it gave ``at`` that time.

    ``since``: when each of those in ``force`` was given; one that nobody was given is not in it.
    """
    given = [name for name in said.given() if force is None or at >= since.get(name, at)]
    since = {**since, **dict.fromkeys(given, at)}
    if force is None:
        return msgspec.structs.replace(said, defaults=()), since
    new = msgspec.structs.replace(force, **{name: getattr(said, name) for name in given})
    return (force if new == force else new), since


def again(mine: Terms, force: Terms | None) -> Terms:
    """``mine``, for one that joins again: with the capacity in force, where it has none of its own."""
    if force is None or "capacities" in mine.given():
        return mine
    if len(mine.capacities) not in (1, len(force.capacities)):
        return mine
    return msgspec.structs.replace(
        mine, capacities=force.capacities, defaults=(*{*mine.defaults, "capacities"},)
    )


def ledger_of(terms: Terms) -> Ledger:
    """An empty ledger on ``terms``."""
    return Ledger(
        terms.capacities,
        lanes=terms.lanes,
        max_waiting=terms.max_waiting,
        max_waiting_per_flow=terms.max_waiting_per_flow,
        max_running=terms.max_running,
        max_bypass=terms.max_bypass,
        max_bypass_wait=terms.max_bypass_wait,
        placement=POLICIES.get(terms.placement, most_free),
    )


def take_terms(
    ledger: Ledger, force: Terms, terms: Terms, held: Sequence[Ticket], now: float
) -> tuple[Ledger, Sequence[Ticket]]:
    """The ledger on ``terms``, after ``force``: with all that ``held`` and waited, and whom that
    granted or refused.
    """
    new = ledger_of(terms)
    places = _places(ledger, new)
    waiting = sorted(
        (ticket for lane in ledger.lanes for ticket in lane.tickets()),
        key=lambda ticket: (ticket.arrived, ticket.owner, ticket.number),
    )
    _carry_over(ledger, new, now, keeps=terms.capacities == force.capacities)
    for ticket in held:
        since = ticket.granted_at
        ticket.lane = places[ticket.lane]
        new.force(ticket, now, min(ticket.device, len(new.accounts) - 1))
        ticket.granted_at = since
    changed: list[Ticket] = []
    for ticket in waiting:
        ticket.lane, ticket.state = places[ticket.lane], NEW
        changed += new.request(ticket, now)
        if ticket.state is REFUSED:
            changed.append(ticket)
    return new, changed


def _places(ledger: Ledger, new: Ledger) -> list[int]:
    """For each lane of ``ledger`` its place in ``new``, by name; the first where there is none."""
    return [new.lane_called(state.lane.name) for state in ledger.lanes]


def find_lane(ticket: Ticket, mine: Terms, ledger: Ledger | None) -> None:
    """Have ``ticket.lane`` be one of ``ledger``'s, before the log has said which it is."""
    if ledger is not None:
        ticket.lane = ledger.lane_called(mine.lanes[ticket.own_lane].name)


def _carry_over(ledger: Ledger, new: Ledger, now: float, *, keeps: bool) -> None:
    """What was learned, what guards say, and capacities: all of them, or those left to measuring."""
    new.sizes.load(ledger.sizes.dump())
    new.drain.load(ledger.drain.dump())
    for device, (old, account) in enumerate(zip(ledger.accounts, new.accounts, strict=False)):
        capacity = old.capacity if keeps else account.capacity or old.capacity
        most = None if old.max_running == float("inf") else int(old.max_running)
        new.allow(device, now, capacity=capacity, ceiling=old.ceiling, max_running=most)
    if ledger.closed:
        new.close(now)
    new.max_running = ledger.max_running


def in_force(terms: Terms, ledger: Ledger) -> Terms:
    """``terms`` with the capacities that ``ledger`` has now: measured, or set by hand since."""
    return msgspec.structs.replace(
        terms, capacities=tuple(account.capacity for account in ledger.accounts), defaults=()
    )


class InForce:
    """The settings in force as one process last saw them, and what it has logged of them."""

    def __init__(self) -> None:
        self.terms: Terms | None = None
        self._told: Terms | None = None

    def compare(self, where: str, mine: Terms, terms: Terms, ledger: Ledger, *, has_joined: bool) -> None:
        """``terms`` are in force for the budget ``where``: once it ``has_joined``, log what differs."""
        before, self.terms = self.terms, in_force(terms, ledger)
        if terms is self._told or not has_joined:
            return
        is_new, self._told = self._told is None, terms
        if is_new and before is not None:
            tell_changes(where, mine, before, self.terms)
        tell_differences(where, mine, self.terms)


def tell_changes(where: str, mine: Terms, before: Terms, force: Terms) -> None:
    """Log, as a warning, which settings for the budget ``where`` a process has changed by joining it."""
    changed = [
        f"{_said(name, mine)} here, {_value(name, before)} before"
        for name in _differing(before, force)
        if name in mine.given() and name not in _differing(mine, force)
    ]
    if changed:
        logger.warning(
            "processes that share the budget %s have different settings, and those of this one, the newest, "
            "are in force for all: %s. Give all of them the same",
            where,
            "; ".join(changed),
        )


def tell_differences(where: str, mine: Terms, force: Terms) -> None:
    """Log which settings for the budget ``where`` differ from those in force, as a warning if given."""
    given, differ = mine.given(), _differing(mine, force)
    against = [
        f"{_said(name, mine)} here, {_value(name, force)} in force" for name in differ if name in given
    ]
    if against:
        logger.warning(
            "processes that share the budget %s have different settings, the newest are in force: %s. "
            "Give all of them the same",
            where,
            "; ".join(against),
        )
    taken = [_said(name, force) for name in differ if name not in given]
    if taken and any(force.capacities):
        logger.info("not set in this process, so as the shared budget %s has it: %s", where, "; ".join(taken))


def _differing(some: Terms, others: Terms) -> list[str]:
    return [name for name in TERMS if name != "defaults" and getattr(some, name) != getattr(others, name)]


def _said(name: str, terms: Terms) -> str:
    return f"{'capacity' if name == 'capacities' else name}={_value(name, terms)}"


def _value(name: str, terms: Terms) -> str:
    value: Any = getattr(terms, name)
    return format_each(value) if name == "capacities" else repr(value)


def format_each(capacities: Sequence[int]) -> str:
    """For people; those of several devices one by one."""
    return " + ".join(map(format_bytes, capacities))
