"""What requests take, measured over a grid and fitted: the rows, and the sums made of them.

Owns the fit and what is shared by requests that run together. Running a target and reading a
meter are in ``targets`` and ``meters``; the demonstration measures its own server with this.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import anyio.to_thread
import msgspec

from gpu_admission.estimators import Linear, PeakMeter
from gpu_admission.estimators.features import workload_of
from gpu_admission.sizes import format_bytes

Cell = Mapping[str, int]
"""One point of a grid: values by name."""


class Target(Protocol):
    """The real thing."""

    def features(self, cell: Cell) -> Mapping[str, Any]:
        """What an admission in front of it would read from a request of ``cell``."""
        ...

    async def run(self, cell: Cell, count: int) -> None:
        """Run ``count`` such requests at once, to their end. Raises ``RuntimeError``."""
        ...


class Measured(msgspec.Struct, frozen=True):
    """Most bytes in use, beyond those before, while ``count`` equal requests ran at once."""

    features: Mapping[str, Any]
    count: int
    peak: int
    spread: int = 0
    """Bytes between the largest and the smallest of its runs."""


class Costs(msgspec.Struct, frozen=True):
    """What was found: bytes of each request, and the bytes ``shared`` by all that run at once."""

    linear: Linear
    shared: int

    def of(self, features: Mapping[str, Any]) -> int:
        """Bytes that one more request adds."""
        return self.linear.estimate(workload_of(features)).bytes


def grid(axes: Mapping[str, Sequence[int]]) -> Sequence[Cell]:
    """Every combination of the values."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def of_alone(alone: Sequence[Measured], terms: Sequence[str]) -> Costs:
    """For requests that may all peak at once: each is charged what one takes alone."""
    return fit([(one.features, one.peak) for one in alone], alone, terms)


def of_batch(alone: Sequence[Measured], together: Sequence[Measured], terms: Sequence[str]) -> Costs:
    """For requests that share a step: one more adds less than one takes alone, and the rest is shared."""
    pairs = zip(alone, together, strict=True)
    added = [(one.features, (many.peak - one.peak) // (many.count - one.count)) for one, many in pairs]
    return fit(added, [*alone, *together], terms)


def fit(
    rows: Sequence[tuple[Mapping[str, Any], int]], measured: Sequence[Measured], terms: Sequence[str]
) -> Costs:
    """The closest linear cost that no row exceeds; ``shared`` is the most that remains beyond it.

    Raises ``ValueError`` when the rows can't tell ``terms`` apart.
    """
    linear = Linear.fit([(features, max(0, size)) for features, size in rows], terms, never_below=True)
    one = Costs(linear, 0)
    shared = max(0, *(each.peak - each.count * one.of(each.features) for each in measured))
    return Costs(linear, shared)


def doubt(costs: Costs, measured: Sequence[Measured]) -> str | None:
    """Why these costs are not those of the requests: what was measured does not follow the grid."""
    alone = [each for each in measured if each.count == measured[0].count]
    most = max(each.peak for each in alone)
    if most == 0:
        return "nothing was seen at any point"
    names = {name for each in alone for name in each.features}
    largest = {name: max(each.features.get(name, 0) for each in alone) for name in names}
    for each in alone:
        if each.features == largest and each.peak < most / 2:
            return f"the largest point took {format_bytes(each.peak)}, and a smaller one {format_bytes(most)}"
    varies = any(each.features != alone[0].features for each in alone)
    if varies and not any(costs.linear.coefficients.values()):
        return "no value of the grid makes a difference"
    return None


async def measure(
    target: Target,
    meter: PeakMeter,
    cells: Sequence[Cell],
    *,
    count: int = 1,
    repeat: int = 3,
    said: Callable[[str], None] = lambda text: None,
) -> Sequence[Measured]:
    """The most that each cell took in ``repeat`` runs, after one that is not counted.

    That way, no row includes what a first run sets up for good (kernels, workspaces, pools).
    """
    await target.run(cells[-1], count)
    rows = []
    for cell in cells:
        peaks = [await _once(target, meter, cell, count) for _ in range(repeat)]
        spread = max(peaks) - min(peaks)
        rows.append(Measured(target.features(cell), count, max(0, *peaks), spread))
        said(" ".join(f"{name}={value}" for name, value in cell.items()))
    return rows


async def _once(target: Target, meter: PeakMeter, cell: Cell, count: int) -> int:
    before = await anyio.to_thread.run_sync(meter.start)
    await target.run(cell, count)
    return await anyio.to_thread.run_sync(meter.peak) - before
