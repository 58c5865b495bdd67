"""What a request takes, measured: alone and in company, on a server without a wall.

Owns the measuring and its sums. Bytes that every request adds go into the estimator; what
a pass needs once, however many are in it, is kept out of the capacity instead.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

import httpx
import msgspec

from gpu_admission.demo.load import send, usage
from gpu_admission.demo.protect import DIALECT, Bytes, Slots
from gpu_admission.demo.server import EngineName
from gpu_admission.demo.trace import PATH, Ask
from gpu_admission.estimators import Linear
from gpu_admission.request import RequestInfo
from gpu_admission.types import Workload

TERMS = ("prompt_tokens", "new_tokens")
SHAPES = (Ask(8, 8), Ask(8, 32), Ask(64, 8), Ask(160, 8))
COMPANY = 16


class Measured(msgspec.Struct, frozen=True):
    """Most bytes in use while ``count`` requests like ``ask`` ran at once."""

    ask: Ask
    count: int
    peak: int


class Costs(msgspec.Struct, frozen=True):
    """Bytes of a request, ``constant + terms``, and ``shared`` by all that run at once."""

    terms: Mapping[str, float]
    constant: int
    shared: int

    def of(self, ask: Ask) -> int:
        """Bytes that ``ask`` adds."""
        return Linear(self.terms, constant=self.constant).estimate(workload(ask)).bytes

    def budget(self, room: int) -> Bytes:
        """The budget that ``room`` leaves."""
        return Bytes(room - self.shared, self.terms, self.constant)

    def slots(self, room: int, asks: Sequence[Ask]) -> Slots:
        """As many as would fit if all were as large as the largest of ``asks``."""
        return Slots(max(1, (room - self.shared) // max(map(self.of, asks))))


async def calibrate(http: httpx.AsyncClient, engine: EngineName) -> Costs:
    """Measure ``SHAPES`` on a server that is idle otherwise, and fit. Raises ``RuntimeError``."""
    alone = [await _measure(http, ask, 1) for ask in SHAPES]
    if engine == "threads":
        return of_threads(alone)
    return of_batch(alone, [await _measure(http, ask, COMPANY) for ask in SHAPES])


def of_threads(alone: Sequence[Measured]) -> Costs:
    """Threads share nothing, and all may be at their peak at once: one alone shows what one takes."""
    return _costs([(one.ask, one.peak) for one in alone], alone)


def of_batch(alone: Sequence[Measured], together: Sequence[Measured]) -> Costs:
    """One more in a batch adds less than one alone takes: its cache, and its rows in a pass."""
    pairs = zip(alone, together, strict=True)
    added = [(one.ask, (many.peak - one.peak) // (many.count - one.count)) for one, many in pairs]
    return _costs(added, [*alone, *together])


def workload(ask: Ask) -> Workload:
    """``ask`` as the budget will read it."""
    scope = {"type": "http", "method": "POST", "path": PATH, "headers": []}
    return DIALECT.read(RequestInfo(scope, msgspec.json.encode(ask.body)))


def _costs(rows: Sequence[tuple[Ask, int]], measured: Sequence[Measured]) -> Costs:
    """The nearest linear cost that no row exceeds; ``shared`` is the most that is left beside it."""
    features = [
        ({term: getattr(workload(ask), term) for term in TERMS}, max(0, added)) for ask, added in rows
    ]
    linear = Linear.fit(features, TERMS, never_below=True)
    one = Costs(linear.coefficients, linear.constant, 0)
    shared = max(0, *(m.peak - m.count * one.of(m.ask) for m in measured))
    return msgspec.structs.replace(one, shared=shared)


async def _measure(http: httpx.AsyncClient, ask: Ask, count: int) -> Measured:
    began = time.monotonic()
    deadline = began + 60
    answers = await asyncio.gather(*(send(http, ask, deadline) for _ in range(count)))
    if wrong := [answer for answer in answers if answer.outcome != "ok"]:
        raise RuntimeError(f"calibration failed: {wrong[0].outcome} {wrong[0].detail}")
    seen = await usage(http, since=began)
    return Measured(ask, count, max(used for _, used in seen.samples))
