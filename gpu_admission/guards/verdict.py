"""What the guards of one device say together: the lowest ceiling wins.

Owns how one guard's word is read, and how several become one. Who is asked, when, and what
follows from it belong to the monitor.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import TypeVar

import msgspec

from gpu_admission.types import DeviceReading, Guard, Limit, Outcome

_Number = TypeVar("_Number", int, float)
_WORTH_TELLING = 0.1


class Verdict(msgspec.Struct, frozen=True):
    """What holds on one device."""

    ceiling: int | None = None
    """Bytes; 0 closes it, ``None`` leaves the capacity as it is."""
    guard: str | None = None
    """Who set it."""
    reason: str = ""
    restart_only: bool = False
    retry_at: float | None = None
    """When it next changes by itself, by ``time.monotonic``."""
    trials: int | None = None
    """Leases that may run at once while a breaker is half-open."""
    clamp: float | None = None
    """Factor on new tokens."""


def limit_of(
    guard: Guard, readings: Sequence[DeviceReading], outcomes: Sequence[Outcome], now: float
) -> Limit:
    """What one guard says, in full; raises what it raises."""
    answer = guard.ceiling(readings, outcomes, now)
    return answer if isinstance(answer, Limit) else Limit(bytes=answer, reason=guard.reason)


def verdict_of(name: str, limit: Limit) -> Verdict:
    """The ``limit`` that the guard called ``name`` sets, as what holds."""
    ceiling = None if limit.bytes is None else max(0, int(limit.bytes))
    speaks = ceiling is not None or limit.trials is not None
    return Verdict(
        ceiling=ceiling,
        guard=name if speaks else None,
        reason=limit.reason,
        restart_only=ceiling == 0 and limit.restart_only,
        retry_at=limit.retry_at,
        trials=limit.trials,
        clamp=limit.clamp,
    )


def together(verdicts: Iterable[Verdict]) -> Verdict:
    """All of them as one. A ceiling that only a restart lifts is named before any other."""
    return functools.reduce(_lower, verdicts, Verdict())


def _lower(one: Verdict, other: Verdict) -> Verdict:
    speaks = other if _rank(other) < _rank(one) else one
    return msgspec.structs.replace(
        speaks, trials=_least(one.trials, other.trials), clamp=_least(one.clamp, other.clamp)
    )


def _rank(verdict: Verdict) -> tuple[bool, float, float, bool]:
    ceiling = float("inf") if verdict.ceiling is None else verdict.ceiling
    trials = float("inf") if verdict.trials is None else verdict.trials
    return not verdict.restart_only, ceiling, trials, not verdict.reason


def _least(one: _Number | None, other: _Number | None) -> _Number | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def is_news(verdict: Verdict, told: Verdict, capacity: int) -> bool:
    """Whether ``verdict`` is worth a log line, given what was last ``told``.

    Ceilings follow every reading: one that has moved by less than a tenth of ``capacity``
    is not logged again.
    """
    if _state(verdict) != _state(told):
        return True
    return abs(_effective(verdict, capacity) - _effective(told, capacity)) > _WORTH_TELLING * capacity


def _state(verdict: Verdict) -> tuple[object, ...]:
    is_flagged = verdict.ceiling is None and bool(verdict.reason)
    return verdict.ceiling == 0, verdict.restart_only, verdict.trials, verdict.clamp, is_flagged


def _effective(verdict: Verdict, capacity: int) -> int:
    return capacity if verdict.ceiling is None else min(verdict.ceiling, capacity)
