"""Measures several things in turn, many times over, and compares the medians.

Owns the loop and the table. What is measured is in the other modules.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

Measure = Callable[[], float]
"""Runs once and returns seconds (or bytes) for one unit."""


def medians(measures: Mapping[str, Measure], rounds: int) -> dict[str, float]:
    """The median of each, over ``rounds`` in which each runs once: noise hits all alike."""
    found: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(rounds):
        for name, measure in measures.items():
            found[name].append(measure())
    return {name: statistics.median(values) for name, values in found.items()}


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [f"\n### {title}\n", f"| {' | '.join(header)} |", f"|{' --- |' * len(header)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines)
