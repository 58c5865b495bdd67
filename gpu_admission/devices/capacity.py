"""How many bytes may be leased on a device, and the sentence that shows every term.

Owns the formula, as pure functions of readings:

    foreign   = used - ours                      other processes
    capacity  = total - reserve - foreign - our resident baseline, less the margin
    available = capacity - sum of leases

A lease that is running is inside ``used`` and inside ``ours`` at once, so it cancels out of
``foreign`` and is subtracted exactly once, by the ledger. Measured free memory less the
leases would subtract it twice. Reading a device and acting on a ceiling are not done here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from gpu_admission.sizes import format_bytes
from gpu_admission.types import DeviceReading

CONFIRMED_BY = 2
"""Readings in a row that must agree before more may be held; fewer bytes count at once."""


class Baseline(msgspec.Struct, frozen=True):
    """What is on a device while nothing is leased: later readings are compared with it. Bytes."""

    used: int
    """In use by everyone."""
    resident: int | None = None
    """Ours that stays: weights, contexts, workspaces, without the allocator's reusable cache."""
    source: Literal["ours", "reserved"] | None = None
    """The field of a reading that says how much is ours; ``None``: none does."""


class Capacity(msgspec.Struct, frozen=True):
    """A measured capacity in bytes, the terms that made it, and the sentence that shows them."""

    bytes: int
    baseline: Baseline
    reserve: int
    """Bytes kept back: the reserve, and what a percentage leaves out."""
    margin: float
    explanation: str


def reusable_cache(reading: DeviceReading) -> int | None:
    """Bytes that our allocator holds and can hand out again; ``None`` = not reported."""
    if reading.reserved is None or reading.allocated is None:
        return None
    return max(0, reading.reserved - reading.allocated)


def counting(reading: DeviceReading, more: int) -> DeviceReading:
    """``reading`` with ``more`` bytes counted as ours: those of leases of other processes."""
    if not more:
        return reading
    fields = {name: getattr(reading, name) for name in ("ours", "reserved", "allocated")}
    told = {name: value + more for name, value in fields.items() if value is not None}
    return msgspec.structs.replace(reading, **told)


def free_bytes(reading: DeviceReading) -> int | None:
    """What the device has left for everyone."""
    if reading.free is not None:
        return reading.free
    if reading.total is None or reading.used is None:
        return None
    return max(0, reading.total - reading.used)


def find_baseline(reading: DeviceReading, *, resident: int | None = None) -> Baseline | None:
    """The baseline that ``reading`` shows, best taken while nothing is leased.

    ``resident`` in bytes overrides what is measured, for allocators whose pool can't be told
    from weights (JAX, ONNX Runtime arenas). ``None`` when the reading does not tell enough.
    """
    free = free_bytes(reading)
    if free is None or reading.total is None:
        return None
    held = reading.held or 0
    used = max(0, reading.total - free - held)
    own, source = own_bytes(reading)
    if own is None:
        return Baseline(used)
    stays = own - (reusable_cache(reading) or 0) - held if resident is None else resident
    return Baseline(used, max(0, stays), source)


def own_bytes(reading: DeviceReading) -> tuple[int | None, Literal["ours", "reserved"] | None]:
    """How much is ours, and the field of ``reading`` that says so."""
    if reading.ours is not None:
        return reading.ours, "ours"
    if reading.reserved is not None:
        return reading.reserved, "reserved"
    return None, None


def room(reading: DeviceReading, baseline: Baseline, *, peak: int = 0) -> int | None:
    """Bytes that all leases together may hold now; ``None`` when ``reading`` does not say enough.

    Where nothing says which bytes are ours, growth since the baseline counts as ours, in use or
    cached, up to ``peak`` (the most that leases ever held): a lease is never counted twice, and a
    foreign process shows once it has grown beyond that.
    """
    free = free_bytes(reading)
    if free is None or reading.total is None:
        return None
    withheld = 0 if reading.usable is None else max(0, reading.total - reading.usable)
    if baseline.source is None or baseline.resident is None:
        unexplained = max(baseline.used, reading.total - free - peak)
        return _within(reading, reading.total - withheld - unexplained, 0)
    own: int | None = getattr(reading, baseline.source)
    if own is None:
        return None
    return _within(reading, free + own - baseline.resident - withheld, baseline.resident)


def _within(reading: DeviceReading, space: int, resident: int) -> int:
    """``space``, but at most what this process's own limit leaves beside what it keeps."""
    if reading.allowance is not None:
        space = min(space, reading.allowance - resident)
    return max(0, space)


def ceiling(
    reading: DeviceReading,
    baseline: Baseline,
    *,
    capacity: int,
    reserve: int = 0,
    margin: float = 0.0,
    overcommit: float = 1.0,
    peak: int = 0,
) -> int | None:
    """The bytes that leases may hold by ``reading``, at most ``capacity``; ``None`` = it does not tell.

    ``margin`` and ``overcommit`` are those that made ``capacity``: measurements only tighten it.
    """
    space = room(reading, baseline, peak=peak)
    if space is None:
        return None
    return min(capacity, int(max(0, space - reserve) * (1 - margin) * overcommit))


def confirmed(readings: Sequence[DeviceReading], measured: Capacity) -> int | None:
    """The bytes that leases may hold by each of the last readings, with the terms that were ``measured``.

    ``None`` where there are fewer than ``CONFIRMED_BY``, or one of them does not tell.
    """
    last = readings[-CONFIRMED_BY:]
    rooms = [room(reading, measured.baseline) for reading in last]
    if len(last) < CONFIRMED_BY or any(space is None for space in rooms):
        return None
    space = min(space for space in rooms if space is not None)
    return int(max(0, space - measured.reserve) * (1 - measured.margin))


def measure(
    reading: DeviceReading,
    *,
    name: str,
    share: float = 1.0,
    reserve: int = 0,
    margin: float = 0.1,
    resident: int | None = None,
) -> Capacity:
    """The capacity that ``reading`` allows, taken when weights are loaded and nothing is leased.

    ``share`` is of the device's total (``"85%"`` = 0.85), ``reserve`` in bytes, ``margin`` a
    share of what is left. Raises ``ValueError`` when the device does not tell its memory, or
    has none left.
    """
    baseline = find_baseline(reading, resident=resident)
    if baseline is None or reading.total is None:
        why = reading.error or "it does not tell its memory"
        raise ValueError(f"capacity can't be measured on {name}: {why}; give capacity in bytes")
    kept = reserve + round(reading.total * (1 - share))
    space = max(0, (room(reading, baseline) or 0) - kept)
    size = int(space * (1 - margin))
    sentence = f"{name}: capacity {format_bytes(size)} = {_terms(reading, baseline, kept, margin)}"
    if not size:
        raise ValueError(f"nothing is left on {name}: {sentence}")
    return Capacity(size, baseline, kept, margin, sentence)


def _terms(reading: DeviceReading, baseline: Baseline, kept: int, margin: float) -> str:
    total = reading.total or 0
    terms = [f"{format_bytes(total)} total", f"- {format_bytes(kept)} reserve"]
    if reading.usable is not None and reading.usable < total:
        terms.append(f"- {format_bytes(total - reading.usable)} not to be relied on")
    if reading.allowance is not None:
        terms.append(f"within {format_bytes(reading.allowance)} that this process may use")
    if baseline.source is None or baseline.resident is None:
        terms.append(f"- {format_bytes(baseline.used)} in use (whose is not told)")
    else:
        own: int = getattr(reading, baseline.source)
        foreign = total - (free_bytes(reading) or 0) - own
        terms.append(f"- {format_bytes(foreign)} foreign")
        terms.append(f"- {format_bytes(baseline.resident)} resident")
    return f"({' '.join(terms)}) less a margin of {margin:.0%}"
