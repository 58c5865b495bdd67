"""What the policy has done so far, and whether it could ever have fired with these settings.

Owns the arithmetic and the words of ``Admission.report()``; everything comes from a
snapshot, the settings and the sizes asked for lately.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gpu_admission.admission.shadow import would_have
from gpu_admission.settings import Settings
from gpu_admission.sizes import format_bytes
from gpu_admission.types import Snapshot


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Counts since start, and bytes. Print it to read it."""

    name: str
    mode: str
    requests: int
    """All requests that were metered."""
    admitted: int
    disconnected: int
    refused: Mapping[str, int]
    """Refusals by reason; in ``shadow`` mode those that would have been, and ``waited`` for delays."""
    peak: int
    capacity: int
    largest: int
    """The largest of the sizes asked lately."""
    fired: bool | None
    """Whether anything was refused, or might have had to wait; ``None``: no request has come yet."""
    verdict: str
    """``fired`` in a sentence, with what it would take."""
    learning: tuple[str, ...] = ()
    """How far ``estimator="auto"`` has learned each route, such as ``learning /generate: 12 of 40``."""
    actual: tuple[str, ...] = ()
    """What requests of each route took, where that is known, such as ``actual /generate: 40% of the
    estimate, by the last 120 known``."""

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    def __str__(self) -> str:
        return (
            f"gpu_admission {self.name!r} (mode={self.mode}): {self._counted()}; "
            f"peak {format_bytes(self.peak)} of {format_bytes(self.capacity)}.\n"
            + "\n".join([self.verdict, *self.learning, *self.actual])
        )

    def _counted(self) -> str:
        if self.mode == "shadow":
            quiet = self.admitted - sum(self.refused.values())
            return would_have(Counter({**self.refused, "": quiet}))
        reasons = ", ".join(f"{reason} {n}" for reason, n in self.refused.items())
        refused = sum(self.refused.values())
        return f"refused {refused} of {self.requests}" + (f" ({reasons})" if reasons else "")


def report(
    snapshot: Snapshot,
    settings: Settings,
    asked: Sequence[int],
    learning: Sequence[str] = (),
    actual: Sequence[str] = (),
) -> Report:
    """A report on ``snapshot``; ``asked`` are the sizes asked lately, ``learning`` how far routes are,
    ``actual`` what their requests took."""
    counts = dict(snapshot.counts)
    admitted = counts.pop("admitted", 0)
    disconnected = counts.pop("disconnected", 0)
    would = {name.removeprefix("shadow_"): n for name, n in counts.items() if name.startswith("shadow_")}
    refused = {name: n for name, n in counts.items() if not name.startswith("shadow_")}
    largest = max(asked, default=0)
    fired, verdict = _verdict(snapshot, settings, largest, bool(refused or would))
    return Report(
        name=settings.name,
        mode=snapshot.mode,
        requests=admitted + disconnected + sum(refused.values()),
        admitted=admitted,
        disconnected=disconnected,
        refused=would if snapshot.mode == "shadow" else refused,
        peak=snapshot.peak,
        capacity=snapshot.capacity,
        largest=largest,
        fired=fired,
        verdict=verdict,
        learning=tuple(learning),
        actual=tuple(actual),
    )


def _verdict(snapshot: Snapshot, settings: Settings, largest: int, refusals: bool) -> tuple[bool | None, str]:
    if snapshot.mode == "off":
        return False, "mode='off': everything passes, nothing is counted."
    if refusals:
        return True, "The policy would have fired." if snapshot.mode == "shadow" else "The policy fired."
    if not largest:
        return None, f"No metered request has come: check {_which(settings)}."
    # One device's share: a request is never split over several.
    capacity = snapshot.capacity // max(1, len(settings.devices))
    if snapshot.peak + largest > capacity:
        return True, (
            f"The policy held requests back or was about to: one more of {format_bytes(largest)} "
            "did not fit at the peak."
        )
    return False, _idle(snapshot, settings, largest, capacity)


def _idle(snapshot: Snapshot, settings: Settings, largest: int, capacity: int) -> str:
    many = min(capacity // largest, settings.max_running or capacity)
    return (
        f"The policy never fired: at the peak {format_bytes(capacity - snapshot.peak)} were still free. "
        f"It can only fire when more than {many} requests of the largest size seen "
        f"({format_bytes(largest)}) run at once: if the server runs fewer, or the estimates are too low, "
        "it does nothing."
    )


def _which(settings: Settings) -> str:
    routes = "all" if settings.routes is None else list(settings.routes)
    return f"routes={routes}, exclude={list(settings.exclude)}, methods={sorted(settings.methods)}"
