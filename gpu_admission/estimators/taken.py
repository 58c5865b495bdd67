"""One request as an estimator follows it, and the bytes that it turns out to have taken.

Conclusions from many requests are drawn in ``history``; the tokens that one used are in ``lengths``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from gpu_admission.types import Estimate, Usage, Workload
from gpu_admission.workloads.usage import really

CORRECTION, ALONE = "learned", "runs alone"
"""Names of estimate parts: what learning added or took off, and what was added to make it run alone."""


class Followed(msgspec.Struct, frozen=True):
    """One request, from its charge to its end."""

    route: str
    estimate: Estimate
    asked: Workload | None = None
    """What its body asks for, if its answer is to be read."""
    size: int = 0
    """Bytes of its body: its prompt can't have more tokens than that."""
    measure: bool = True
    """Whether it is worth measuring, should it run alone."""


class Taken(NamedTuple):
    """What one request took."""

    route: str
    first: int
    """Bytes that were estimated, before any correction."""
    peak: int
    """Bytes that it took."""
    alone: int = 0
    """Bytes that it was charged, if it ran alone."""


def taken(route: str, charged: Estimate, peak: int) -> Iterator[Taken]:
    """What the request took, if that is worth knowing: a peak below 1 says nothing."""
    parts = charged.parts
    first = charged.bytes - parts.get(CORRECTION, 0) - parts.get(ALONE, 0)
    if peak >= 1 and first >= 1:
        yield Taken(route, first, peak, charged.bytes if ALONE in parts else 0)


def used(estimator: Any, request: Followed, usage: Usage) -> int | None:
    """Bytes of the tokens that an answer reports, by the formula of ``estimator``; ``None`` without one."""
    formula = getattr(getattr(estimator, "inner", None), "estimate", None)
    if formula is None or request.asked is None or getattr(estimator, "covers_calls_inside", False):
        return None  # of what is measured, tokens say nothing
    size: int = formula(really(request.asked, usage, longest_prompt=request.size)).bytes
    return size


def as_estimate(result: int | Estimate) -> Estimate:
    """What an estimator returned, as an estimate."""
    return result if isinstance(result, Estimate) else Estimate(result, parts={"estimated": result})


def moved(first: Estimate, size: int, name: str, note: str) -> Estimate:
    """``first`` with the difference to ``size`` as one more part, so that the parts still add up."""
    parts = {**first.parts, name: size - first.bytes}
    notes = (*first.notes, note) if note else first.notes
    return Estimate(size, None, first.basis, parts, notes)
