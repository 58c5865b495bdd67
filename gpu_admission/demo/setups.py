"""How each replay is run: behind what, with how many processes, and what its clients ask for.

Owns what differs between replays. Nothing is run here, and nothing is measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from gpu_admission.demo.calibrate import Costs
from gpu_admission.demo.plan import REPLAYS, ROUNDS, Role, Round
from gpu_admission.demo.protect import Nothing, Protection, Unprotected
from gpu_admission.demo.trace import Ask

ASKED = 4096
"""``max_tokens`` of clients that do not care, before scaling."""
PAGE = 16
"""Tokens in a page of the engine's cache, where it takes only what is used."""
_SHARES = {2: "half", 3: "a third", 4: "a quarter", 8: "an eighth"}


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """How one replay is run."""

    role: Role
    label: str
    protection: Protection
    workers: int = 0
    """Web processes in front of the engine's; 0: it is its own."""
    page: int = 0
    asked: int = 0
    """``max_tokens`` that all clients ask for; 0: what they use."""

    def asks(self, asks: Sequence[Ask]) -> list[Ask]:
        """The same requests, as this setup's clients send them."""
        return [ask.asking(self.asked) for ask in asks] if self.asked else list(asks)


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What setups are made from: the wall, measured costs, the requests, and a place to share."""

    room: int
    costs: Costs
    paged: Costs
    asks: Sequence[Ask]
    workers: int
    folder: str


def setups(rounds: Sequence[Round], facts: Facts) -> Iterator[Setup]:
    """Of all ``rounds``, in the order in which they are run."""
    for name in ROUNDS:
        if name in rounds:
            yield from (_setup(role, facts) for role in REPLAYS[name])


def _setup(role: Role, facts: Facts) -> Setup:
    budget, paged = facts.costs.budget(facts.room), facts.paged.budget(facts.room)
    workers = facts.workers
    match role:
        case "unprotected":
            return Setup(role=role, label="unprotected", protection=Unprotected())
        case "semaphore":
            slots = facts.costs.slots(facts.room, facts.asks)
            return Setup(role=role, label=f"Semaphore({slots.count})", protection=slots)
        case "bytes":
            return Setup(role=role, label="GPUAdmission", protection=budget)
        case "auto":
            return Setup(role=role, label="GPUAdmission()", protection=Nothing())
        case "divided":
            share = msgspec.structs.replace(budget, capacity=budget.capacity // workers)
            part = _SHARES.get(workers, f"1/{workers}")
            return Setup(
                role=role, label=f"{workers} workers, {part} each", protection=share, workers=workers
            )
        case "one budget":
            one = msgspec.structs.replace(budget, shared=facts.folder)
            return Setup(role=role, label=f"{workers} workers, one budget", protection=one, workers=workers)
        case "asked":
            return Setup(role=role, label=f"asking {ASKED:,}", protection=paged, page=PAGE, asked=ASKED)
        case "learning" | "learned":  # what one has written is what the other begins with
            learned = msgspec.structs.replace(paged, learned=f"{facts.folder}/learned.json")
            label = f"asking {ASKED:,}, {role}"
            return Setup(role=role, label=label, protection=learned, page=PAGE, asked=ASKED)
