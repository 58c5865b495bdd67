"""The settings in force for all processes: how a ledger adopts new ones.

Owns what happens to waiting and held tickets when settings change under them. Whose settings are
the newest is the replica's business.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from gpu_admission.budget.ledger import Ledger
from gpu_admission.budget.placement import POLICIES, most_free
from gpu_admission.budget.ticket import NEW, REFUSED, Ticket
from gpu_admission.shared.operations import Terms

logger = logging.getLogger("gpu_admission")


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
    ledger: Ledger, terms: Terms, held: Sequence[Ticket], now: float
) -> tuple[Ledger, Sequence[Ticket]]:
    """The ledger on ``terms``: with all that ``held`` and waited, and whom that granted or refused."""
    new = ledger_of(terms)
    places = _places(ledger, new)
    waiting = sorted(
        (ticket for lane in ledger.lanes for ticket in lane.tickets()),
        key=lambda ticket: (ticket.arrived, ticket.owner, ticket.number),
    )
    _carry_over(ledger, new, now)
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
    names = [state.lane.name for state in new.lanes]
    return [names.index(s.lane.name) if s.lane.name in names else 0 for s in ledger.lanes]


def _carry_over(ledger: Ledger, new: Ledger, now: float) -> None:
    """What was learned, what guards say, and capacities that the new settings leave to measuring."""
    new.sizes.load(ledger.sizes.dump())
    new.drain.load(ledger.drain.dump())
    for device, (old, account) in enumerate(zip(ledger.accounts, new.accounts, strict=False)):
        capacity = account.capacity or old.capacity
        most = None if old.max_running == float("inf") else int(old.max_running)
        new.allow(device, now, capacity=capacity, ceiling=old.ceiling, max_running=most)
    if ledger.closed:
        new.close(now)
    new.max_running = ledger.max_running


def warn_of_differences(where: str, mine: Terms, force: Terms) -> None:
    """Log which settings for the budget ``where`` differ from those in force."""
    differ = [
        f"{name}={getattr(mine, name)!r} here, {getattr(force, name)!r} in force"
        for name in Terms.__struct_fields__
        if getattr(mine, name) != getattr(force, name)
    ]
    if differ:
        logger.warning(
            "processes that share the budget %s have different settings, the newest are in force: %s. "
            "Give all of them the same",
            where,
            "; ".join(differ),
        )
