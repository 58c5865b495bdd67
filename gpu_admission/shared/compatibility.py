"""Whether a process may take part in a budget as it is: the same rules, and the same devices in one order.

Owns the sentences for one that may not. A device of a budget is known by its place alone: a process that
counts others would be granted bytes of a device that it does not have, or of another than it uses.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpu_admission.shared.members import Member
from gpu_admission.shared.operations import RULES, Gone, Terms
from gpu_admission.shared.replica import Replica


def why_not(
    replica: Replica, where: str, terms: Terms, devices: Sequence[str], dead: Sequence[Gone]
) -> str | None:
    """Why a process on ``terms``, with ``devices`` that it names, may not join; ``None`` if it may.

    ``dead``: members that have ended, which the log does not say yet.
    """
    if replica.other_rules is not None:
        return (
            f"the shared budget {where} follows version {replica.other_rules} of the rules, this process "
            f"{RULES}: stop the others first, or give this one a budget of another name"
        )
    gone = {each.member for each in dead}
    for member in replica.members.living.values():
        if member.name not in gone and member.terms is not None:
            said = _differs(member, member.terms, terms, devices)
            if said is not None:
                return (
                    f"the shared budget {where} is used by pid {member.pid} on {member.host} with {said}: "
                    "give all processes the same devices= in the same order, stop the others first, or give "
                    "this one a budget of another name"
                )
    return None


def _differs(member: Member, theirs: Terms, mine: Terms, devices: Sequence[str]) -> str | None:
    """How ``member`` counts devices, where a process on ``mine`` counts them otherwise."""
    one, other = len(theirs.capacities), len(mine.capacities)
    if _counts(theirs, member.devices) and _counts(mine, devices) and one != other:
        return f"{one} device{'s' * (one > 1)}, and by this process with {other}"
    if sorted(member.devices) == sorted(devices) and tuple(member.devices) != tuple(devices):
        return "the same devices in another order"
    return None


def _counts(terms: Terms, devices: Sequence[str]) -> bool:
    """Whether a process says how many devices there are; one that is told neither takes them as they are."""
    return bool(devices) or "capacities" in terms.given()
