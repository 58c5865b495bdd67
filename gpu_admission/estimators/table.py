"""``Table``: measured sizes on a grid of features, read by rounding up to the next point.

Owns the grid. For runtimes that no formula describes: measure some shapes, charge each
request as the next larger one measured. Never interpolates: between two points a
runtime may take as much as at the upper one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product as combinations
from typing import Any, Literal

from gpu_admission.estimators.features import Number, per_sequence, product, rows_of
from gpu_admission.estimators.rows import MeasuredRow, measured
from gpu_admission.estimators.terms import assumed, clamp, render
from gpu_admission.request import RequestInfo
from gpu_admission.sizes import MAX_BYTES, format_bytes
from gpu_admission.types import Estimate, Workload

Cell = tuple[int, ...]


class Table:
    """Bytes of the next measured point at or above a request, in every feature.

    ``rows`` are ``({feature: value}, bytes)``, all with the same features or products of
    features, such as ``"width*height"``; they need not fill the grid. A point that measured less
    than a smaller one is raised to it, so that more never costs less. ``beyond`` says what a
    request above the grid takes: ``"refuse"`` (2**62 bytes: it fits nowhere) or ``"scale"`` (the
    edge of the grid times the factor by which each feature exceeds it: enough while growth is at
    most proportional). A corner that no measurement covers is always refused. Each sequence
    takes a point anew, unless a feature names ``sequences``.

    A row that took more than twice what a larger one took is named in a note; with ``strict`` it
    is a ``ValueError``.
    """

    def __init__(
        self,
        rows: Iterable[MeasuredRow],
        *,
        beyond: Literal["refuse", "scale"] = "refuse",
        basis: Literal["device", "pool"] = "device",
        strict: bool = False,
    ) -> None:
        if beyond not in ("refuse", "scale"):
            raise ValueError(f"beyond must be 'refuse' or 'scale', not {beyond!r}")
        pairs = measured(rows, of="Table")
        self.features = _features(pairs)
        self.beyond = beyond
        self.basis: Literal["device", "pool"] = basis
        self._readers = [product(name) for name in self.features]
        self._by_sequence = bool(per_sequence(self.features))
        points = _points(self.features, pairs)
        self.notes = _wild(self.features, points)
        """What speaks against the rows."""
        if strict and self.notes:
            raise ValueError(f"Table with strict=True: {'; '.join(self.notes)}")
        self._axes = [sorted({point[i] for point in points}) for i in range(len(self.features))]
        self._cells = _fill(self._axes, points)

    def __call__(self, info: RequestInfo, /) -> Estimate:
        return self.estimate(info.workload)

    def estimate(self, workload: Workload) -> Estimate:
        """Bytes of ``workload``. Raises ``LookupError`` when it lacks a feature."""
        point = self._point(workload)
        cell = tuple(bisect_left(axis, value) for axis, value in zip(self._axes, point, strict=True))
        size = self._cells.get(cell)
        notes = (*self.notes, *assumed(workload)) if workload.defaulted else self.notes
        rows = rows_of(workload) if self._by_sequence else 1
        if size is None:
            return self._above(point, cell, rows, notes)
        size = clamp(size * rows)
        return Estimate(size, None, self.basis, {"measured": size}, notes)

    def explain(self, workload: Workload) -> str:
        """The point that ``workload`` is charged as, as text."""
        return render(f"Table of {', '.join(self.features)}", self.estimate(workload))

    def __repr__(self) -> str:
        axes = ", ".join(f"{n}={axis}" for n, axis in zip(self.features, self._axes, strict=True))
        return f"Table({axes}; up to {format_bytes(max(self._cells.values()))})"

    def _point(self, workload: Workload) -> tuple[Number, ...]:
        values = []
        for factors in self._readers:
            value: Number = 1
            for factor in factors:
                value *= factor(workload)
            values.append(value if value <= MAX_BYTES else MAX_BYTES)
        return tuple(values)

    def _above(self, point: Sequence[Number], cell: Cell, rows: int, notes: tuple[str, ...]) -> Estimate:
        over = [
            f"{name} {value:g} > {axis[-1]:g}"
            for name, value, axis in zip(self.features, point, self._axes, strict=True)
            if value > axis[-1]
        ]
        notes = (
            *notes,
            f"beyond what was measured: {', '.join(over) or 'nothing this large in all features'}",
        )
        edge = self._cells.get(tuple(min(i, len(axis) - 1) for i, axis in zip(cell, self._axes, strict=True)))
        if edge is None or self.beyond == "refuse":
            return Estimate(MAX_BYTES, None, self.basis, {"beyond the grid": MAX_BYTES}, notes)
        size: Number = edge * rows
        for value, axis in zip(point, self._axes, strict=True):
            if value > axis[-1]:
                size = size * value / axis[-1] if axis[-1] else MAX_BYTES
        return Estimate(clamp(size), None, self.basis, {"scaled": clamp(size)}, notes)


Pairs = Sequence[tuple[Mapping[str, Any], int]]


def _features(pairs: Pairs) -> tuple[str, ...]:
    if not pairs or not pairs[0][0]:
        raise ValueError("Table needs at least one row of features and their size")
    names = tuple(pairs[0][0])
    for values, _ in pairs:
        if set(values) != set(names):
            raise ValueError(
                f"every row of a Table must have the features {list(names)}, one has {list(values)}"
            )
    return names


def _points(names: Sequence[str], pairs: Pairs) -> dict[tuple[Number, ...], int]:
    """The most that was measured at each point, at least a byte."""
    points: dict[tuple[Number, ...], int] = {}
    for values, size in pairs:
        point = tuple(min(MAX_BYTES, values[name]) for name in names)
        points[point] = max(size, points.get(point, 1))
    return points


def _wild(names: Sequence[str], points: Mapping[tuple[Number, ...], int]) -> tuple[str, ...]:
    """A sentence on the point that took the most beyond twice what a larger point took."""
    worst = 2.0
    said: tuple[str, ...] = ()
    for point, size in points.items():
        above = [s for p, s in points.items() if all(a >= b for a, b in zip(p, point, strict=True))]
        if size > worst * min(above):
            worst = size / min(above)
            row = dict(zip(names, point, strict=True))
            said = (
                f"the row {row} took {format_bytes(size)}, {worst:.1f} times what a larger one took: "
                "measure it again, or leave it out",
            )
    return said


def _fill(axes: Sequence[Sequence[Number]], points: Mapping[tuple[Number, ...], int]) -> dict[Cell, int]:
    """The size of each cell with a measured point at or above it: the least of those points,
    each taken as the most of what was measured at or below itself."""
    sizes = {
        tuple(bisect_left(axis, value) for axis, value in zip(axes, point, strict=True)): size
        for point, size in points.items()
    }
    shape = [len(axis) for axis in axes]
    most_below = _sweep(sizes, shape, max, -1)
    return _sweep({cell: most_below[cell] for cell in sizes}, shape, min, +1)


def _sweep(
    sizes: Mapping[Cell, int], shape: Sequence[int], pick: Callable[[int, int], int], side: int
) -> dict[Cell, int]:
    """Each cell's ``pick`` of itself and all cells on one ``side`` of it, in every axis."""
    cells = dict(sizes)
    order = list(combinations(*(range(length) for length in shape)))
    for axis in range(len(shape)):
        for cell in order if side < 0 else reversed(order):
            neighbour = (*cell[:axis], cell[axis] + side, *cell[axis + 1 :])
            if (near := cells.get(neighbour)) is not None:
                cells[cell] = pick(near, cells.get(cell, near))
    return cells
