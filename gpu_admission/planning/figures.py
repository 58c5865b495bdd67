"""The result of a replay in figures: shares of the requests, waits, and the ledger's forecasts.

Owns the definitions of the figures. Running a replay and printing a table are elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_admission.planning.replay import Replayed
from gpu_admission.planning.trace import Trace

SOON = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Shares are percentages of the requests that they are about; waits are in seconds."""

    requests: int
    """In the trace."""
    completed: float
    """Ran to their end."""
    soon: float
    """Started within ``SOON`` seconds."""
    largest: float
    """Share of the largest tenth that completed."""
    small_wait: float
    """The 99th percentile of the waits in the smaller half, among those that started."""
    out_of_memory: float
    """How many of a thousand requests were let in although the card was full."""
    used: float
    """Share of the byte-seconds available until the last arrival that were held."""
    forecast_error: float
    """Median of ``|forecast - wait|`` of those that waited and then started; NaN where nobody did."""
    waits: Sequence[float]
    """Waits of those that started, in order."""


def figures(trace: Trace, replayed: Replayed, capacity: int) -> Figures:
    """The figures of one replay of ``trace`` on ``capacity`` bytes."""
    by_size = sorted(range(len(trace)), key=trace.sizes.__getitem__)
    largest = by_size[-max(1, len(by_size) // 10) :]
    smaller = by_size[: (len(by_size) + 1) // 2]
    waits = sorted(wait for wait in replayed.waits if wait != math.inf)
    span = trace.arrivals[-1]
    return Figures(
        requests=len(trace),
        completed=_percent(sum(replayed.done), len(trace)),
        soon=_percent(sum(wait <= SOON for wait in waits), len(trace)),
        largest=_percent(sum(replayed.done[i] for i in largest), len(largest)),
        small_wait=percentile([replayed.waits[i] for i in smaller if replayed.waits[i] != math.inf], 0.99),
        out_of_memory=1000 * replayed.out_of_memory / len(trace),
        used=_percent(replayed.byte_seconds, capacity * span) if span else math.nan,
        forecast_error=percentile([abs(told - wait) for told, wait in foretold(replayed)], 0.5),
        waits=waits,
    )


def foretold(replayed: Replayed) -> Sequence[tuple[float, float]]:
    """(forecast, wait) of those that were given a forecast, waited, and started."""
    pairs = zip(replayed.forecasts, replayed.waits, strict=True)
    return [(told, wait) for told, wait in pairs if not math.isnan(told) and wait != math.inf]


def completed_by_tenant(replayed: Replayed, flows: Sequence[int]) -> tuple[float, float]:
    """Percentages completed of tenant 0's requests and of all the others'."""
    busiest = [done for done, flow in zip(replayed.done, flows, strict=True) if not flow]
    others = [done for done, flow in zip(replayed.done, flows, strict=True) if flow]
    return _percent(sum(busiest), len(busiest)), _percent(sum(others), len(others))


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that ``share`` of all values do not exceed; NaN if there are none."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(len(values) * share) - 1)]


def _percent(part: float, whole: float) -> float:
    return 100 * part / whole if whole else math.nan
