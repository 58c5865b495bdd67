"""The decision log: one JSON line for each request, once it has ended, was refused, or its client left.

Owns the fields of the line. A line holds no body, header, raw path or key; how it gets to
the disk without anybody waiting is ``LineFile``'s work. ``gpu-admission replay`` reads it.
"""

from __future__ import annotations

import functools
import os
import time
from pathlib import Path

import msgspec

from gpu_admission.observe.linefile import LineFile, closed_with
from gpu_admission.settings.checks import count
from gpu_admission.sizes import parse_bytes
from gpu_admission.types import Event

_DECISIONS = {"released": "admitted", "refused": "refused", "disconnected": "disconnected"}


class Decision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line, in bytes and seconds. A field that has nothing to say is left out."""

    arrival: float
    """Unix time at which it asked for its bytes."""
    decision: str
    """``admitted``, ``refused`` or ``disconnected``."""
    route: str
    lane: str
    bytes: int = 0
    """The estimate: what it was charged. 0 where it was refused before there was one."""
    reason: str = ""
    """Why it was refused; in shadow mode, why it would have been."""
    status: int = 0
    waited: float = 0.0
    held: float = 0.0
    """How long it held its bytes."""
    held_bytes: int = 0
    """What it held at its end; after a resize this differs from ``bytes``."""
    peak: int | None = None
    """Bytes that it really took, where the app reported them."""
    actual: int | None = None
    """Bytes that it took, where that is known by whatever means: to be read beside ``bytes``."""
    outcome: str = ""
    device: str = ""
    lease: int = 0


class DecisionLog:
    """An observer that writes ``Decision`` lines to ``path``; a request never waits for it.

    ``path`` may hold ``{pid}``: processes must not share a file. At ``max_bytes`` it is
    turned over, and the last ``keep`` files are kept as ``path.1``, ``path.2`` and so on. At
    most ``max_queued`` lines wait for the disk. Raises ``FileNotFoundError`` when the
    directory does not exist, ``TypeError``/``ValueError`` for options.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_bytes: int | str = "64MiB",
        keep: int = 5,
        max_queued: int = 10_000,
    ) -> None:
        count(1)("keep", keep)
        count(1)("max_queued", max_queued)
        parent = Path(path).parent
        if not parent.is_dir():
            raise FileNotFoundError(f"path: there is no directory {str(parent)!r}")
        size = parse_bytes(max_bytes, name="max_bytes")
        # The monotonic clock has an arbitrary zero: this puts events on the calendar.
        line = functools.partial(_line, epoch=time.time() - time.monotonic())
        self._would: dict[int, str] = {}
        """What shadow mode said about the leases that are open."""
        self._file = LineFile(os.fspath(path), line, max_bytes=size, keep=keep, max_queued=max_queued)
        closed_with(self, self._file)

    @property
    def dropped(self) -> int:
        """Lines left out because the disk did not keep up, or failed."""
        return self._file.dropped

    def __call__(self, event: Event) -> None:
        if event.kind == "shadow" and event.reason:
            self._would[event.lease] = event.reason
        if event.kind not in _DECISIONS:
            return
        if self._would and event.kind == "released":
            reason = self._would.pop(event.lease, "")
            event = msgspec.structs.replace(event, reason=reason)
        self._file.put(event)

    def flush(self) -> None:
        """Write what is queued, for at most a few seconds; called at the server's shutdown."""
        self._file.close()

    def close(self) -> None:
        """Write what is queued. The next event opens it again."""
        self._file.close()


def _line(event: Event, epoch: float) -> str:
    return msgspec.json.encode(decision(event, epoch)).decode()


def decision(event: Event, epoch: float) -> Decision:
    """The line of an event that ends a request; ``epoch`` is the Unix time of ``at`` 0."""
    return Decision(
        arrival=round(epoch + event.at - event.held - event.waited, 6),
        decision=_DECISIONS[event.kind],
        route=event.route,
        lane=event.lane,
        bytes=event.charged,
        reason=event.reason,
        status=event.status,
        waited=round(event.waited, 6),
        held=round(event.held, 6),
        held_bytes=event.bytes if event.kind == "released" else 0,
        peak=event.peak,
        actual=event.actual,
        outcome=event.outcome,
        device=event.device,
        lease=event.lease,
    )
