"""How long requests wait on a planned card: the demand, played through the real ledger.

Owns the pace at which requests run together on a roofline, the comparison with a semaphore,
and the search for the largest load that keeps a promise. Figures are bytes and seconds.
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_DOWN, Context

import msgspec

from gpu_admission.planning.demand import Demand
from gpu_admission.planning.disciplines import Setup
from gpu_admission.planning.figures import percentile
from gpu_admission.planning.replay import NEVER, Replay, Replayed
from gpu_admission.planning.roofline import Roofline
from gpu_admission.planning.steady import Steady
from gpu_admission.planning.trace import Trace
from gpu_admission.sizes import MAX_BYTES

_SLO = re.compile(r"\s*(?:(wait|answer)\s+)?p(\d{1,2})\s*<\s*(\d+(?:\.\d+)?)\s*(ms|s)?\s*")
STEPS = 12
"""Halvings of a search: to a fortieth of a percent."""
SUSTAINED = 0.95
"""Share of what a card can answer that is promised at most: nearer to all of it, queues have no bound."""


class RooflinePace(msgspec.Struct, frozen=True):
    """Requests that run together on ``card``: its steps get longer, and prompts take turns."""

    card: Roofline
    capacity: int
    cached: float
    """Share of the bytes held that a step reads: the cache, grown half way on the mean."""

    def slowdown(self, held: float, running: int, alone: float) -> float:
        """Slowdown of requests that each spend ``alone / running`` of their time alone on a prompt."""
        if running < 1:
            return 1.0
        if not self.card.engine.batches:
            return float(running)
        step = self.card.step(running, held * self.cached) / self.card.step()
        return alone + (1 - alone / running) * step


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What became of a demand. Waits are until work began, answers until it ended; never = infinite."""

    name: str
    waits: Sequence[float]
    answers: Sequence[float]
    at_once: int
    """Most requests that ran together."""
    span: float
    """Seconds until the last one ended."""
    held: Sequence[tuple[float, float]]
    """(seconds, share of the capacity in use) whenever it changed."""

    @property
    def completed(self) -> float:
        """Share of all requests."""
        return sum(answer != NEVER for answer in self.answers) / len(self.answers)

    @property
    def rate(self) -> float:
        """Requests answered a second."""
        return sum(answer != NEVER for answer in self.answers) / self.span if self.span else 0.0

    def wait(self, share: float) -> float:
        """Quantile of the waits; infinite if too many never started."""
        return percentile(self.waits, share)

    def answer(self, share: float) -> float:
        """Quantile of the times until the answer was complete."""
        return percentile(self.answers, share)


class Slo(msgspec.Struct, frozen=True):
    """A promise: ``quantile`` of the waits (or answers) stay below ``seconds``."""

    of: str
    quantile: float
    seconds: float

    @classmethod
    def parse(cls, text: str) -> Slo:
        """``"p95<5s"``, ``"wait p99<500ms"``, ``"answer p50<20s"``. Raises ``ValueError``."""
        match = _SLO.fullmatch(text)
        if match is None or not 0 < int(match[2]) < 100:
            raise ValueError(f"--slo {text!r}: write [wait|answer] pNN<SECONDSs, such as p95<5s")
        return cls(
            match[1] or "wait", int(match[2]) / 100, float(match[3]) / (1000 if match[4] == "ms" else 1)
        )

    def kept(self, played: Played) -> bool:
        """Whether ``played`` keeps it; a request that was refused or gave up counts as waiting for ever."""
        found = played.wait(self.quantile) if self.of == "wait" else played.answer(self.quantile)
        return found < self.seconds

    def __str__(self) -> str:
        return f"{self.of} p{self.quantile * 100:.0f}<{self.seconds:g}s"


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """The setting in which a demand is played: the card, its capacity, and the admission's settings."""

    card: Roofline
    capacity: int
    charged: Sequence[int]
    """Bytes of each request that is played; if the demand is cut short, of the first ones."""
    timeout: float = math.inf
    max_waiting: int = 10**9

    def play(self, demand: Demand, *, permits: int | None = None, name: str = "") -> Played:
        """``demand`` under the budget of bytes, or under a semaphore of ``permits``.

        A request that could never fit counts as never answered.
        """
        fits = [i for i in range(len(demand)) if self.charged[i] <= self.capacity]
        if not fits:
            raise ValueError("no request of those that are asked fits the capacity")
        trace = self._trace(demand, fits)
        setup = Setup(capacity=self.capacity, timeout=self.timeout, max_waiting=self.max_waiting)
        if permits is not None:
            setup = replace(setup, capacity=MAX_BYTES, max_bypass=0, max_running=permits)
        steady = Steady.of(self.card, [(demand.prompts[i], demand.news[i]) for i in fits], trace.sizes)
        shares = [
            self.card.prefill(demand.prompts[i]) / seconds
            for i, seconds in zip(fits, trace.seconds, strict=True)
        ]
        replayed = Replay(
            trace,
            setup.ledger(),
            RooflinePace(self.card, self.capacity, steady.read),
            patience=self.timeout,
            shares=shares,
        ).run()
        return _played(name, trace, replayed, self.capacity, len(demand) - len(fits))

    def _trace(self, demand: Demand, fits: Sequence[int]) -> Trace:
        return Trace(
            arrivals=[demand.arrivals[i] for i in fits],
            sizes=[self.charged[i] for i in fits],
            seconds=[self._alone(demand.prompts[i], demand.news[i]) for i in fits],
        )

    def _alone(self, prompt: int, new: int) -> float:
        """Seconds of a request alone; where requests share steps, the pace adds the caches that are held."""
        if not self.card.engine.batches:
            return self.card.seconds(prompt, new)
        return self.card.prefill(prompt) + new * self.card.step()


def largest_load(
    setting: Setting,
    demand: Demand,
    slo: Slo,
    *,
    most: float,
    said: Callable[[str], None] = lambda text: None,
) -> float:
    """Requests a second, at most ``most``, at which ``demand`` still keeps ``slo``; 0 where none does.

    Every rate that is tried has three digits, so that what is promised is what was played.
    """

    def kept(rate: float) -> bool:
        return slo.kept(setting.play(demand.faster(rate / demand.rate)))

    low, high = 0.0, three_digits(most)
    if kept(high):
        return high
    for _ in range(STEPS):
        middle = three_digits((low + high) / 2)
        if kept(middle):
            low = middle
        else:
            high = middle
        said(f"{low:.3g} to {high:.3g} requests/s")
    return low


def three_digits(value: float) -> float:
    """``value`` rounded down to three digits."""
    return float(Context(prec=3, rounding=ROUND_DOWN).create_decimal(repr(value)))


def _played(name: str, trace: Trace, replayed: Replayed, capacity: int, never: int) -> Played:
    starts = [
        (arrival + wait, arrival + end, size)
        for arrival, wait, end, size in zip(
            trace.arrivals, replayed.waits, replayed.ends, trace.sizes, strict=True
        )
        if end != NEVER
    ]
    held, most = _use(starts, capacity)
    return Played(
        name=name,
        waits=[*replayed.waits, *[NEVER] * never],
        answers=[*replayed.ends, *[NEVER] * never],
        at_once=most,
        span=max((end for _, end, _ in starts), default=0.0),
        held=held,
    )


def _use(starts: Sequence[tuple[float, float, int]], capacity: int) -> tuple[list[tuple[float, float]], int]:
    """Share of ``capacity`` over time, and the most that ran together. Ends come before starts."""
    changes = [(start, 1, size) for start, _, size in starts] + [(end, -1, size) for _, end, size in starts]
    heapq.heapify(changes)
    held = running = most = 0
    line = []
    while changes:
        at, step, size = heapq.heappop(changes)
        held += step * size
        running += step
        most = max(most, running)
        line.append((at, held / capacity))
    return line, most


def seconds(value: float) -> str:
    """``value`` as people read it; ``never`` where it is infinite."""
    if math.isinf(value):
        return "never"
    if math.isnan(value):
        return "-"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"
