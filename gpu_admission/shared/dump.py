"""A replica saved at a place in the log, so that a newcomer needn't read from the beginning.

Owns the snapshot's format; a ledger's own is in ``budget.dump``.
"""

from __future__ import annotations

import math

import msgspec

from gpu_admission.budget.dump import LedgerDump, TicketDump
from gpu_admission.budget.dump import dump as dump_ledger
from gpu_admission.budget.dump import load as load_ledger
from gpu_admission.budget.ticket import Ticket
from gpu_admission.shared.members import Member, MemberDump
from gpu_admission.shared.operations import RULES, Terms
from gpu_admission.shared.replica import Replica
from gpu_admission.shared.terms import ledger_of


class ReplicaDump(msgspec.Struct, array_like=True, frozen=True):
    """The whole state of a replica."""

    rules: int
    at: float | None
    epoch: int
    expires: bool
    settles: float | None
    terms: Terms | None
    since: dict[str, float]
    living: list[MemberDump]
    dead: list[MemberDump]
    ledger: LedgerDump | None


class _Rules(msgspec.Struct, array_like=True, frozen=True):
    """What snapshots of every version begin with."""

    rules: int


_decode = msgspec.msgpack.Decoder(ReplicaDump).decode
_decode_rules = msgspec.msgpack.Decoder(_Rules).decode


def dump(replica: Replica) -> bytes:
    """``replica`` as it is now."""
    members = replica.members
    state = ReplicaDump(
        RULES,
        None if math.isinf(replica.at) else replica.at,
        replica.epoch,
        replica.expires,
        replica.settles,
        replica.terms,
        dict(replica.since),
        [member.dump() for member in members.living.values()],
        [member.dump() for member in members.dead.values()],
        None if replica.ledger is None else dump_ledger(replica.ledger, members.held()),
    )
    return msgspec.msgpack.encode(state)


def load(replica: Replica, data: bytes) -> None:
    """Load what was dumped into a new ``replica``. Raises ``ValueError`` if it is no snapshot."""
    try:
        rules = _decode_rules(data).rules
        if rules != RULES:  # and the rest may have another shape
            replica.other_rules = rules
            return
        state = _decode(data)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise ValueError(f"the snapshot of the log can't be read: {error}") from error
    replica.at = -math.inf if state.at is None else state.at
    replica.epoch, replica.expires, replica.settles = state.epoch, state.expires, state.settles
    replica.terms, replica.since = state.terms, state.since
    for said, where in ((state.living, replica.members.living), (state.dead, replica.members.dead)):
        for member in map(Member.load, said):
            where[member.name] = member
    if state.terms is not None and state.ledger is not None:
        _load_ledger(replica, state.terms, state.ledger)
    replica.look_ahead()


def _load_ledger(replica: Replica, terms: Terms, state: LedgerDump) -> None:
    def ticket_of(said: TicketDump) -> Ticket:
        own = replica.own(said.owner, said.number)
        return Ticket(said.size) if own is None else own

    replica.ledger = ledger_of(terms)
    members = {member.name: member for member in replica.members}
    for member in members.values():
        member.follow(terms)
    for ticket in load_ledger(replica.ledger, state, ticket_of):
        members[ticket.owner].tickets[ticket.number] = ticket
