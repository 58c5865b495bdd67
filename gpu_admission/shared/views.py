"""What is shown of a shared budget: who holds what, on which host, for how long."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from gpu_admission.budget.ticket import GRANTED, WAITING
from gpu_admission.shared.members import Member
from gpu_admission.shared.replica import Replica
from gpu_admission.types import MemberSnapshot


def view_members(replica: Replica, own: str, now: float) -> tuple[MemberSnapshot, ...]:
    """All members, the living first, in the order in which they joined."""
    return tuple(_view(member, own, now) for member in replica.members)


def _view(member: Member, own: str, now: float) -> MemberSnapshot:
    held = [ticket for ticket in member.tickets.values() if ticket.state is GRANTED]
    return MemberSnapshot(
        member.name,
        member.pid,
        member.host,
        max(0.0, now - member.joined),
        max(0.0, now - member.last),
        sum(ticket.bytes for ticket in held),
        len(held),
        sum(ticket.state is WAITING for ticket in member.tickets.values()),
        member.resident,
        member.name == own,
        member.until is not None,
    )


def view_budget(replica: Replica, where: str, now: float, gone: Collection[str]) -> dict[str, Any]:
    """All of it as plain JSON types, for programs: bytes, counts and seconds, named as in a snapshot.

    ``gone`` are members that have ended, which nobody has said yet.
    """
    ledger, settles = replica.ledger, replica.settles
    return {
        "shared": where,
        "capacity": ledger and ledger.capacity,
        "in_use": ledger and ledger.in_use,
        "running": ledger and ledger.running,
        "waiting": ledger and ledger.waiting,
        "waiting_bytes": ledger and ledger.waiting_bytes,
        "draining": ledger and ledger.closed,
        "settles": None if settles is None else max(0.0, settles - now) or None,
        "devices": [
            {"capacity": account.capacity, "in_use": account.in_use, "ceiling": account.limit}
            for account in (ledger.accounts if ledger else ())
        ],
        "members": [_plain(member, member.name in gone) for member in view_members(replica, "", now)],
    }


def _plain(member: MemberSnapshot, is_gone: bool) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(member)
    del plain["is_self"]  # whoever looks is none of them
    return plain | {"state": state_of(member, is_gone)}


def state_of(member: MemberSnapshot, is_gone: bool) -> str:
    """One word for its life: ``dead`` is one that has ended, which nobody has said yet."""
    return "declared dead" if member.is_dead else "dead" if is_gone else "alive"
