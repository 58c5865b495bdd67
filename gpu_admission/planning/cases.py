"""One row of a comparison: a discipline and its settings, played on a trace and a card.

Owns what a ``--what-if`` may change and how it changes a case. Figures are defined in
``figures``, disciplines in ``disciplines``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from gpu_admission.planning.disciplines import Discipline, Setup, flows_of, lanes_of, true_sizes
from gpu_admission.planning.figures import Figures, completed_by_tenant, figures
from gpu_admission.planning.replay import Replay
from gpu_admission.planning.service import Card
from gpu_admission.planning.trace import Trace
from gpu_admission.sizes import parse_bytes


class Row(msgspec.Struct, frozen=True):
    """``tenants``: percentages completed of the busiest tenant's requests, and of all the others'."""

    name: str
    figures: Figures
    tenants: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is played. ``drag`` is the card's; ``pace`` stretches the time between arrivals."""

    name: str
    discipline: Discipline
    setup: Setup
    drag: float
    pace: float = 1.0
    error: float = 0.0
    """Relative standard deviation of what requests really take, around what they are charged."""
    tenants: int = 8
    seed: int = 0

    def play(self, trace: Trace) -> Row:
        """Replay ``trace``; a request that is larger than the card counts as one that did not complete."""
        card = Card(self.setup.capacity, self.drag)
        trace = trace.stretched(self.pace)
        flows = flows_of(trace, self.tenants, self.seed)
        replayed = Replay(
            trace,
            self.discipline.ledger(self.setup, trace),
            card,
            patience=self.setup.timeout,
            sizes=true_sizes(trace, self.error, self.seed),
            lanes=lanes_of(trace) if self.discipline.lanes else None,
            flows=flows if self.discipline.flows else None,
        ).run()
        return Row(self.name, figures(trace, replayed, card.capacity), completed_by_tenant(replayed, flows))

    def what_if(self, text: str) -> Case:
        """The same with other settings: ``"capacity=40GiB,timeout=10"``; ``traffic`` multiplies the arrivals.

        Raises ``ValueError`` with a sentence for what is no setting or no value of it.
        """
        settings: dict[str, Any] = dict(_setting(part) for part in text.split(","))
        pace = self.pace / settings.pop("traffic", 1.0)
        return replace(self, name=text, setup=replace(self.setup, **settings), pace=pace)


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = (part.strip() for part in text.partition("="))
    read = _readers().get(name)
    if read is None or not equals:
        raise ValueError(f"what if {text!r}: write NAME=VALUE, where NAME is one of {', '.join(_readers())}")
    try:
        number = read(value)
    except ValueError:
        raise ValueError(f"what if {text!r}: {value!r} is no value of {name}") from None
    if not number >= 0 or (not number and name in ("capacity", "traffic", "max_running")):
        raise ValueError(f"what if {text!r}: {name} is too small")
    if name == "margin" and number >= 1:
        raise ValueError(f"what if {text!r}: margin is below 1")
    return name, number


def _readers() -> Mapping[str, Callable[[str], Any]]:
    return {
        "capacity": parse_bytes,
        "timeout": float,
        "max_waiting": int,
        "max_running": int,
        "max_bypass": int,
        "max_bypass_wait": float,
        "margin": float,
        "traffic": float,
    }
