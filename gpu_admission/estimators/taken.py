"""One request as an estimator follows it, and what it turns out to have taken.

Owns what its answer means for that: the tokens that it says, put through the formula that charged it.
What is concluded from many is ``history``'s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from gpu_admission.types import Estimate, Usage, Workload
from gpu_admission.workloads.usage import really

CORRECTION, ALONE = "learned", "runs alone"
"""Parts of an estimate: what learning has put on or taken off, and what was put on to run alone."""


class Followed(msgspec.Struct, frozen=True):
    """One request, from its charge to its end."""

    route: str
    estimate: Estimate
    asked: Workload | None = None
    """Where its answer is to be read."""
    size: int = 0
    """Bytes of its body, which its prompt can't have more tokens than."""
    measure: bool = True
    """Whether it is worth measuring, should it run alone."""


class Said(NamedTuple):
    """What an answer said. ``sent``: it was cut short, after at least so many tokens; else ``None``."""

    request: Followed
    usage: Usage | None
    sent: int | None


class Taken(NamedTuple):
    """What one request took."""

    route: str
    first: int
    """Bytes that were estimated, before any correction."""
    peak: int
    """Bytes that it took."""
    alone: int = 0
    """Bytes that it had, where it ran alone."""
    counted: int = 0
    """Tokens that its prompt was counted; 0: not known what they were."""
    prompt: int = 0
    """Tokens that they were."""


def first_of(charged: Estimate) -> int:
    """Bytes of an estimate before it was corrected."""
    parts = charged.parts
    return charged.bytes - parts.get(CORRECTION, 0) - parts.get(ALONE, 0)


def taken(route: str, charged: Estimate, peak: int, counted: int = 0, prompt: int = 0) -> Iterator[Taken]:
    """That, where it is worth knowing: a peak below 1 says nothing."""
    first = first_of(charged)
    if peak >= 1 and first >= 1:
        yield Taken(route, first, peak, charged.bytes if ALONE in charged.parts else 0, counted, prompt)


def heard(said: Said, formula: Callable[[Workload], int]) -> Iterator[Taken]:
    """What an answer says that its request took; one that does not say it, all that was charged at first.

    One that was cut short can only raise.
    """
    request, usage, sent = said
    asked, charged = request.asked, request.estimate
    if asked is None:
        return
    if sent is not None:
        peak = formula(msgspec.structs.replace(asked, new_tokens=min(asked.new_tokens, sent)))
        if peak > charged.bytes:
            yield from taken(request.route, charged, peak)
    elif usage is None:
        yield from taken(request.route, charged, first_of(charged))
    else:
        real = really(asked, usage, longest_prompt=request.size)
        counted, prompt = prompt_of(asked), prompt_of(real)
        if usage.prompt_tokens is None:
            counted = prompt = 0
        yield from taken(request.route, charged, formula(real), counted, prompt)


def prompt_of(workload: Workload) -> int:
    """Tokens of all its prompts."""
    return workload.total_prompt_tokens or workload.prompt_tokens


def with_prompt(workload: Workload, share: float) -> Workload:
    """``workload`` with ``share`` of the prompt that it has."""
    return msgspec.structs.replace(
        workload,
        prompt_tokens=math.ceil(workload.prompt_tokens * share),
        total_prompt_tokens=math.ceil(workload.total_prompt_tokens * share),
    )
