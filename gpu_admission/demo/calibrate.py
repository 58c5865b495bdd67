"""What a request takes, measured: alone and in company, on a server without a wall.

Owns the measuring of the demo's own server; the sums are those of ``gpu-admission calibrate``. Bytes
that every request adds go into the estimator; what a pass needs once, however many are in it, is
kept out of the capacity instead.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from math import ceil

import httpx
import msgspec

from gpu_admission.demo.load import samples, send
from gpu_admission.demo.protect import DIALECT, Bytes, Slots
from gpu_admission.demo.server import EngineName
from gpu_admission.demo.trace import PATH, Ask
from gpu_admission.estimators import Linear
from gpu_admission.planning.calibrate import Costs as Found
from gpu_admission.planning.calibrate import Measured, of_alone, of_batch
from gpu_admission.request import RequestInfo
from gpu_admission.types import Workload

TERMS = ("prompt_tokens", "new_tokens")
SHAPES = (Ask(8, 8), Ask(8, 32), Ask(64, 8), Ask(160, 8))
COMPANY = 16


class Costs(msgspec.Struct, frozen=True):
    """Bytes of a request, ``constant + terms``, and ``shared`` by all that run at once."""

    terms: Mapping[str, float]
    constant: int
    shared: int

    def of(self, ask: Ask) -> int:
        """Bytes that ``ask`` adds."""
        return Linear(self.terms, constant=self.constant).estimate(workload(ask)).bytes

    def rounded_up(self, page: int) -> Costs:
        """Where caches grow by pages: none is more than a page larger than what it holds."""
        return Costs(self.terms, self.constant + ceil(page * self.terms["new_tokens"]), self.shared)

    def budget(self, room: int) -> Bytes:
        """The budget that ``room`` leaves."""
        return Bytes(room - self.shared, self.terms, self.constant)

    def slots(self, room: int, asks: Sequence[Ask]) -> Slots:
        """As many as would fit if all were as large as the largest of ``asks``."""
        return Slots(max(1, (room - self.shared) // max(map(self.of, asks))))


async def calibrate(
    http: httpx.AsyncClient, engine: EngineName, said: Callable[[str], None] = lambda text: None
) -> Costs:
    """Measure ``SHAPES`` on a server that is idle otherwise, and fit. Raises ``RuntimeError``.

    ``said`` hears of each measurement before it is made.
    """
    alone = [await _measure(http, ask, 1, said) for ask in SHAPES]
    if engine == "threads":
        return _costs(of_alone(alone, TERMS))
    return _costs(of_batch(alone, [await _measure(http, ask, COMPANY, said) for ask in SHAPES], TERMS))


def _costs(found: Found) -> Costs:
    return Costs(found.linear.coefficients, found.linear.constant, found.shared)


def features(ask: Ask) -> Mapping[str, int]:
    """What the budget will count with."""
    return {term: getattr(workload(ask), term) for term in TERMS}


def workload(ask: Ask) -> Workload:
    """``ask`` as the budget will read it."""
    scope = {"type": "http", "method": "POST", "path": PATH, "headers": []}
    return DIALECT.read(RequestInfo(scope, msgspec.json.encode(ask.body)))


async def _measure(http: httpx.AsyncClient, ask: Ask, count: int, said: Callable[[str], None]) -> Measured:
    said(f"measuring {count} at once of {ask.prompt_tokens} + {ask.new_tokens} tokens")
    began = time.monotonic()
    deadline = began + 60
    answers = await asyncio.gather(*(send(http, ask, deadline) for _ in range(count)))
    if wrong := [answer for answer in answers if answer.outcome != "ok"]:
        raise RuntimeError(f"calibration failed: {wrong[0].outcome} {wrong[0].detail}")
    return Measured(features(ask), count, max(seen.used for seen in await samples(http, since=began)))
