"""The summary of shadow mode: once a minute in which requests came, what would have happened to them.

An observer; it decides nothing. The first request of a minute starts the clock, so that an
idle service logs nothing and a few requests by hand are summed up too.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpu_admission.sizes import format_bytes
from gpu_admission.types import Event

if TYPE_CHECKING:
    from gpu_admission.admission import Admission

logger = logging.getLogger("gpu_admission")


def would_have(counts: Counter[str]) -> str:
    """``"would have refused 12 of 240 (queue_full 12), delayed 31"`` from reasons and how often each came."""
    refused = {reason: n for reason, n in counts.most_common() if reason not in ("", "waited")}
    text = f"would have refused {sum(refused.values())} of {counts.total()}"
    if refused:
        text += f" ({', '.join(f'{reason} {n}' for reason, n in refused.items())})"
    return f"{text}, delayed {counts['waited']}"


class ShadowSummary:
    """Logs a line every ``every`` seconds: what would have been refused, and the most bytes held at once."""

    def __init__(self, every: float = 60.0, *, timer: Callable[..., Any] = threading.Timer) -> None:
        self._every = every
        self._timer = timer
        # The garbage collector may end a lease, and so call this, inside of this very lock.
        self._lock = threading.RLock()
        self._counts: Counter[str] = Counter()
        self._peak = 0
        self._running = False

    def watch(self, admission: Admission) -> None:
        self._admission = admission

    def __call__(self, event: Event) -> None:
        if event.kind != "shadow":
            return
        in_use = self._admission.in_use
        with self._lock:
            self._counts[event.reason] += 1
            self._peak = max(self._peak, in_use)
            if self._running:
                return
            self._running = True
        timer = self._timer(self._every, self.say)
        timer.daemon = True
        timer.start()

    def say(self) -> None:
        """Log what came since the last time."""
        with self._lock:
            counts, peak = self._counts, self._peak
            self._counts, self._peak, self._running = Counter(), 0, False
        if not counts:
            return
        logger.info(
            "shadow mode of %r: %s; peak %s of %s",
            self._admission.settings.name,
            would_have(counts),
            format_bytes(peak),
            format_bytes(self._admission.snapshot().capacity),
        )
