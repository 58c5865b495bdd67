"""The ways to run the demo's app: as it is, behind a counting semaphore, behind a budget of bytes.

Each is a value that travels to the server process and wraps the same app there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

import msgspec

from gpu_admission import GPUAdmission
from gpu_admission.demo.tokenizer import ByteTokenizer
from gpu_admission.estimators import Learned, Linear
from gpu_admission.request import Estimator
from gpu_admission.types import ASGIApp, Receive, Scope, Send
from gpu_admission.workloads.openai import OpenAI

DIALECT = OpenAI(tokens=ByteTokenizer())
MARGIN = 0.1
"""Of the capacity, for the answers that are longer than the 99 % that were learned."""
PATIENCE = 300.0
"""Seconds in the queue: a semaphore has no limit, so this one is beyond the demo's length."""


class Unprotected(msgspec.Struct, frozen=True, tag="unprotected"):
    """Whatever comes, starts."""

    def wrap(self, app: ASGIApp) -> ASGIApp:
        return app


class Slots(msgspec.Struct, frozen=True, tag="slots"):
    """``asyncio.Semaphore(count)``: as many at once as would fit if all were the largest."""

    count: int

    def wrap(self, app: ASGIApp) -> ASGIApp:
        return SemaphoreGate(app, self.count)


class Bytes(msgspec.Struct, frozen=True, tag="bytes"):
    """``GPUAdmission`` with the measured capacity and the measured bytes of a request."""

    capacity: int
    terms: Mapping[str, float]
    constant: int
    learned: str | None = None
    """File of what is learned from answers, read at the start and written at the end."""
    shared: str | None = None
    """Folder of a budget that several processes have together."""

    def wrap(self, app: ASGIApp) -> ASGIApp:
        linear = Linear(self.terms, constant=self.constant)
        if self.learned is None:
            return self._door(app, linear)
        learned = Learned(linear, usage=True)
        learned.load(self.learned)
        return Saving(self._door(app, learned), partial(learned.save, self.learned))

    def _door(self, app: ASGIApp, estimator: Estimator) -> GPUAdmission:
        return GPUAdmission(
            app,
            capacity=self.capacity,
            estimator=estimator,
            dialect=DIALECT,
            margin=0.0 if self.learned is None else MARGIN,
            timeout=PATIENCE,
            shared=self.shared,
        )


class Nothing(msgspec.Struct, frozen=True, tag="nothing"):
    """``GPUAdmission`` that is told nothing, but that clients are as patient as with a semaphore."""

    def wrap(self, app: ASGIApp) -> ASGIApp:
        return GPUAdmission(app, timeout=PATIENCE)


Protection: TypeAlias = Unprotected | Slots | Bytes | Nothing


class Saving:
    """Calls ``save`` when the app has shut down."""

    def __init__(self, app: ASGIApp, save: Callable[[], None]) -> None:
        self._app = app
        self._save = save

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)
        if scope["type"] == "lifespan":
            self._save()


class SemaphoreGate:
    """What people write without a budget: a semaphore around the whole app."""

    def __init__(self, app: ASGIApp, count: int) -> None:
        self._app = app
        self._semaphore = asyncio.Semaphore(count)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        async with self._semaphore:
            await self._app(scope, receive, send)
