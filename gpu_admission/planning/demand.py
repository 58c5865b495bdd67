"""What is asked of a card: how many requests of which length, and when they come.

Owns the ways to describe it: a mix of lengths, all at once or at a rate, or a trace. What a
request takes is not known here.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpu_admission.planning.trace import read_tokens

PLAYED = 4_000
"""Requests of a mix that come at a rate, and of a trace in each step of a search."""
MOST = 20_000
"""How many requests of a trace are played, counted from the first."""
_PART = re.compile(r"\s*(?:(\d{1,7})\s*x\s*)?(\d{1,7})\s*\+\s*(\d{1,7})\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """One column a fact, one row a request; in the order of their arrival."""

    arrivals: Sequence[float]
    """Seconds; all 0 where they come at once."""
    prompts: Sequence[int]
    """Tokens."""
    news: Sequence[int]
    """Tokens that each is answered with."""
    says: str
    """Where it comes from."""

    def __len__(self) -> int:
        return len(self.arrivals)

    @property
    def at_once(self) -> bool:
        return not self.arrivals[-1]

    @property
    def rate(self) -> float:
        """Requests a second; infinite where they come at once."""
        return float("inf") if self.at_once else len(self) / self.arrivals[-1]

    def first(self, count: int) -> Demand:
        """The first ``count`` of them."""
        return replace(
            self, arrivals=self.arrivals[:count], prompts=self.prompts[:count], news=self.news[:count]
        )

    def faster(self, factor: float) -> Demand:
        """The same requests at ``factor`` times the rate."""
        return replace(self, arrivals=[arrival / factor for arrival in self.arrivals])


@dataclass(frozen=True, slots=True)
class Part:
    """``count`` equal requests."""

    count: int
    prompt: int
    new: int


def parse_mix(text: str) -> Sequence[Part]:
    """``"100x128+256,10x1024+512"``: 100 with 128 prompt and 256 new tokens, and 10 longer ones.

    Raises ``ValueError`` for what is none.
    """
    parts = []
    for piece in text.split(","):
        match = _PART.fullmatch(piece)
        if match is None or not int(match[1] or 1) or not int(match[2]) + int(match[3]):
            raise ValueError(f"--mix {piece.strip()!r}: write COUNTxPROMPT+NEW, such as 100x128+256")
        parts.append(Part(int(match[1] or 1), int(match[2]), int(match[3])))
    if sum(part.count for part in parts) > MOST:
        raise ValueError(f"--mix has more than {MOST:,} requests")
    return parts


def at_once(parts: Sequence[Part], *, seed: int = 0) -> Demand:
    """All in the same instant, shuffled."""
    rows = [(part.prompt, part.new) for part in parts for _ in range(part.count)]
    random.Random(seed).shuffle(rows)
    return Demand(
        arrivals=[0.0] * len(rows),
        prompts=[prompt for prompt, _ in rows],
        news=[new for _, new in rows],
        says=f"{_mixed(parts)} at once",
    )


def at_rate(parts: Sequence[Part], rate: float, *, count: int = PLAYED, seed: int = 0) -> Demand:
    """``count`` independent requests drawn from the mix, ``rate`` a second over all of their time."""
    chance = random.Random(seed)
    drawn = chance.choices(parts, [part.count for part in parts], k=count)
    arrivals = list(itertools.accumulate(chance.expovariate(rate) for _ in drawn))
    slower = count / rate / arrivals[-1]
    return Demand(
        arrivals=[arrival * slower for arrival in arrivals],
        prompts=[part.prompt for part in drawn],
        news=[part.new for part in drawn],
        says=f"{_mixed(parts)}, {rate:g} a second (Poisson)",
    )


def from_trace(path: Path) -> Demand:
    """The first requests of a CSV of tokens. Raises ``OSError`` and ``ValueError``."""
    if path.suffix == ".jsonl":
        raise ValueError(f"{path} is a decision log, which has no tokens: use gpu-admission replay")
    rows = read_tokens(path)[:MOST]
    return Demand(
        arrivals=[arrival for arrival, _, _ in rows],
        prompts=[prompt for _, prompt, _ in rows],
        news=[new for _, _, new in rows],
        says=f"{path.name}, {len(rows):,} requests in {rows[-1][0]:,.0f} s",
    )


def _mixed(parts: Sequence[Part]) -> str:
    return ", ".join(f"{part.count} x {part.prompt}+{part.new}" for part in parts)
