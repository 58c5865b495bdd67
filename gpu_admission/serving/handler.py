"""One call of a batcher's handler: on the loop or in a thread, and its results checked.

Owns what a handler may be and may return. Which items it gets, and where its results go, is
decided elsewhere.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence, Set
from concurrent.futures import Future
from contextlib import ExitStack, asynccontextmanager
from contextvars import copy_context
from typing import Any, Protocol, TypeVar

import anyio

from gpu_admission.admission.context import current_lease
from gpu_admission.admission.lease import Lease
from gpu_admission.runtime.task import is_async, is_cancelled
from gpu_admission.runtime.worker import Worker, settled
from gpu_admission.serving.funding import kept_open

Row_co = TypeVar("Row_co", covariant=True)


class Rows(Protocol[Row_co]):
    """A list, a tuple, an array or a tensor: one entry for each item, in their order."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int, /) -> Row_co: ...


class Handler:
    """``function`` of a list of items, at most ``limiter`` of its calls at once.

    A plain function gets threads of its own, one for each call at once, and always the same ones: a
    thread that has never run the model first sets up its memory, and its streams on a device.
    """

    def __init__(self, function: Any, limiter: anyio.CapacityLimiter, name: str) -> None:
        self._function = function
        self._limiter = limiter
        self._name = name
        self._idle: list[Worker] = []
        self._is_async = is_async(function)

    def close(self) -> None:
        """End the threads that run nothing. For a handler that nobody has closed, its end does it."""
        while self._idle:
            self._idle.pop().stop()

    async def __call__(self, items: list[Any], leases: Iterable[Lease] = ()) -> Sequence[Any]:
        """One result for each of ``items``. Raises ``TypeError`` or ``ValueError`` for anything else.

        Results are never shifted: where their number is wrong, no caller gets another's. ``leases``
        are held until a thread has really returned, even where the event loop has ended before it.
        """
        try:
            results = await self._results(items, leases)
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            raise RuntimeError("something that the handler awaited was cancelled") from error
        if isinstance(results, (Mapping, Set, str, bytes)) or not hasattr(results, "__getitem__"):
            kind = type(results).__name__
            raise TypeError(f"the handler must return a list, tuple or array of results, not {kind}")
        if len(results) != len(items):
            raise ValueError(f"the handler returned {len(results)} results for {len(items)} items")
        return [results[place] for place in range(len(items))]

    async def _results(self, items: list[Any], leases: Iterable[Lease]) -> Any:
        async with _one_of(self._limiter):
            if self._is_async:
                return await self._function(items)
            results = await self._in_thread(items, leases)
        return await results if inspect.isawaitable(results) else results

    async def _in_thread(self, items: list[Any], leases: Iterable[Lease]) -> Any:
        worker = self._idle.pop() if self._idle else Worker(self._name)
        kept = ExitStack()
        kept_open(filter(None, (*leases, current_lease())), kept)
        call = functools.partial(copy_context().run, self._function, items)
        try:
            return await _whole(worker.submit(call), kept)
        finally:
            self._idle.append(worker)


async def _whole(future: Future[Any], kept: ExitStack) -> Any:
    """Its result, and the end of ``kept``; who is cancelled meanwhile waits too, for the thread works on."""
    future.add_done_callback(lambda _: kept.close())
    try:
        with anyio.CancelScope(shield=True):
            await settled(future)
        return future.result()
    finally:
        del future  # otherwise the error would keep itself alive


@asynccontextmanager
async def _one_of(limiter: anyio.CapacityLimiter) -> AsyncIterator[None]:
    """A token of ``limiter``, without a turn of the loop where one is free."""
    try:
        limiter.acquire_nowait()
    except anyio.WouldBlock:
        await limiter.acquire()
    try:
        yield
    finally:
        limiter.release()
