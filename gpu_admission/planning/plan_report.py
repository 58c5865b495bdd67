"""What a plan says, as tables and sentences: for a terminal, and for the page.

Owns words and columns. Figures are made in ``plan`` and ``waiting``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec

from gpu_admission.planning.demand import Demand
from gpu_admission.planning.plan import Plan, Size
from gpu_admission.planning.roofline import Engine, engines
from gpu_admission.planning.terminal import Table
from gpu_admission.planning.waiting import SUSTAINED, Played, Slo, seconds, three_digits
from gpu_admission.sizes import format_bytes


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is shown."""

    title: str
    plan: Plan
    demand: Demand
    """What was asked."""
    played: Sequence[Played]
    """A semaphore of the safe N, and the budget of bytes, on the same requests."""
    by_load: Sequence[tuple[float, Played]]
    """(requests a second, result) for a mix that arrives at random."""
    promise: str = ""
    settings: str = ""


def memory_table(plan: Plan) -> Table:
    """The capacity, term by term."""
    rows = [(name, _signed(size)) for name, size in plan.terms.items()]
    return Table(("capacity", "bytes"), [*rows, ("= for requests", format_bytes(plan.capacity))])


def size_table(plan: Plan) -> Table:
    """How many at once, and how fast they are."""
    head = (
        "if all are\nlike the",
        "prompt\n+ new",
        "bytes\neach",
        "at\nonce",
        "new\ntokens/s",
        "\nrequests/s",
        "each\ntakes",
    )
    return Table(head, [_size_row(size) for size in plan.sizes])


def played_table(report: Report) -> Table:
    """The same requests under a semaphore and under a budget of bytes."""
    at_once = report.demand.at_once
    last = "all\ndone in" if at_once else "\nrequests/s"
    head = (
        "through the\nreal ledger",
        "\ndone",
        "most\nat once",
        "wait\np50",
        "wait\np95",
        "answer\np50",
        "answer\np95",
        last,
    )
    return Table(head, [_played_row(played, at_once=at_once) for played in report.played])


def played_notes(report: Report) -> Iterator[str]:
    """How what was played is to be read: where it was too little, or too much for the card."""
    demand, limit = report.demand, report.plan.load_limit
    if len(demand) == 1:
        yield (
            "One request was played, which never waits, so that the rows are alike: --mix 100x512+256 plays "
            "a hundred at once, --rate R some thousands that come one after another, --trace recorded ones."
        )
    if not demand.at_once and demand.rate > limit:
        yield (
            f"{demand.rate:.3g} requests/s are above the limit, the {limit:.3g} that it can answer in the "
            f"long run: the queue grows as long as they come. Shown: what became of {len(demand):,} of them."
        )


def load_table(report: Report) -> Table:
    """Waits by load, for requests that arrive at random."""
    limit = report.plan.load_limit
    rows = [
        (
            f"{rate:.3g} ({rate / limit:.0%})",
            *(seconds(played.wait(share)) for share in (0.5, 0.95, 0.99)),
            seconds(played.answer(0.5)),
            seconds(played.answer(0.95)),
        )
        for rate, played in report.by_load
    ]
    return Table(
        ("requests/s\n(of the limit)", "wait\np50", "wait\np95", "wait\np99", "answer\np50", "answer\np95"),
        rows,
    )


def sentences(report: Report) -> Iterator[str]:
    """What the tables are based on, and what follows from them."""
    plan, card = report.plan, report.plan.card
    yield f"Weights: {format_bytes(card.weights.bytes)}, {card.weights.says}."
    yield f"A token of cache takes {format_bytes(plan.per_token)}; {_computing(plan)}."
    yield (
        f"Speed by roofline, {card.engine.name}: {card.engine.bandwidth:.0%} of "
        f"{card.gpu.bandwidth / 1e9:,.0f} GB/s, {card.engine.compute:.0%} of "
        f"{card.rate / card.engine.compute / 1e12:,.0f} TFLOP/s, {card.engine.layer * 1e6:g} us a layer and "
        "step; --bandwidth-share, --compute-share and --layer-us set others."
    )
    if card.gpu.source:
        yield f"The card's numbers: {card.gpu.source}."
    if not card.engine.batches:
        yield (
            f"{card.engine.name} does not batch requests of its own accord: those that run at once take "
            "turns, so that more of them are safe, and no faster. --batch plans for a batcher before it."
        )
    yield f"Safe N, capacity over the largest request: a semaphore of {plan.slots:,}."
    yield f"The limit, what it can answer of those asked in the long run: {plan.load_limit:.3g} requests/s."
    yield from plan.notes


def _computing(plan: Plan) -> str:
    if not plan.per_prompt_token:
        return "what a prompt computes with is set aside for a whole step"
    return f"a token of prompt computes with {format_bytes(plan.per_prompt_token)} more"


def _size_row(size: Size) -> Sequence[str]:
    return (
        size.name,
        f"{size.prompt:,} + {size.new:,}",
        format_bytes(size.bytes),
        f"{size.at_once:,}",
        f"{size.tokens_per_second:,.0f}",
        f"{size.requests_per_second:.3g}",
        seconds(size.seconds) if size.at_once else "-",
    )


def _played_row(played: Played, *, at_once: bool) -> Sequence[str]:
    last = seconds(played.span) if at_once else f"{played.rate:.3g}"
    return (
        played.name,
        f"{played.completed:.1%}",
        f"{played.at_once:,}",
        seconds(played.wait(0.5)),
        seconds(played.wait(0.95)),
        seconds(played.answer(0.5)),
        seconds(played.answer(0.95)),
        last,
    )


def promised(slo: Slo, rate: float, plan: Plan) -> str:
    """The largest load at which a promise is kept."""
    if not rate:
        return f"{slo} is kept at no load on {plan.card.gpu.name}."
    kept = (
        f"{slo} is kept up to {rate:.3g} requests/s on {plan.card.gpu.name}, "
        f"{rate / plan.load_limit:.0%} of what it can answer in the long run"
    )
    if rate < three_digits(SUSTAINED * plan.load_limit):
        return f"{kept}."
    return f"{kept}: no more is promised, because nearer to all of it every queue grows sooner or later."


def what_to_change(engine: Engine) -> str:
    """Where no card keeps a promise."""
    if engine.batches:
        return "ask less of it (--rate, --mix), or promise less (--slo)"
    others = " or ".join(name for name, other in engines().items() if other.batches)
    return (
        f"requests that run at once take turns under {engine.name}; plan for a batcher before it (--batch) "
        f"or another engine (--engine {others}), ask less (--rate, --mix), or promise less (--slo)"
    )


def patience(played: Played) -> float:
    """A timeout that few would hit: the 99 % quantile of the waits, rounded up; at least 5 seconds."""
    wait = played.wait(0.99)
    if not math.isfinite(wait):
        return 30.0
    steps = (5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 300)
    return float(next((step for step in steps if step >= 1.2 * wait), steps[-1]))


def _signed(size: int) -> str:
    return f"- {format_bytes(-size)}" if size < 0 else format_bytes(size)
