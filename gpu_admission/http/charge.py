"""What a request is charged: the estimator asked, and what happens where it fails, hangs or is async.

Owns the way from a rule and a request to an ``Estimate``. Where and when a body is read is
``intake``'s business.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import numbers
from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from gpu_admission.errors import ClientLeft, Rejected
from gpu_admission.request import RequestInfo
from gpu_admission.rules.metering import Rule
from gpu_admission.sizes import MAX_BYTES
from gpu_admission.types import Estimate


class AsksForNothing(Exception):
    """A request without a body, on a path that no dialect reads: it needs no lease."""


def ask(rule: Rule, info: RequestInfo) -> Estimate | Awaitable[object]:
    """What the estimator of ``rule`` says of ``info``, or the awaitable that it returns.

    Raises what the estimator raises, and ``TypeError`` or ``ValueError`` if its answer is no size.
    """
    estimator = rule.estimator
    if estimator is None:
        raise LookupError(f"no pattern of the estimator mapping matches {rule.route}")
    result: object = estimator(info)
    if type(result) is Estimate and type(result.bytes) is int and 0 < result.bytes <= MAX_BYTES:
        return result
    if type(result) is int and 0 < result <= MAX_BYTES:
        return Estimate(result)
    return result if isinstance(result, Awaitable) else checked(result)


def is_async(rule: Rule) -> bool:
    """Whether the estimator is a coroutine function, so that it has to run in the event loop."""
    estimator: Any = rule.estimator
    return inspect.iscoroutinefunction(estimator) or inspect.iscoroutinefunction(type(estimator).__call__)


def read_ahead(info: RequestInfo) -> None:
    """Read the workload here; an estimator that asks for it later gets the same errors."""
    with contextlib.suppress(Exception):
        _ = info.workload


def checked(result: object) -> Estimate:
    """What an estimator returned, as an estimate between 1 byte and ``MAX_BYTES``."""
    if isinstance(result, Estimate):
        return Estimate(_whole(result.bytes), result.low, result.basis, result.parts, result.notes)
    return Estimate(_whole(result))


def _whole(size: Any) -> int:
    """``size``, which may be of numpy's types too, as a number of bytes."""
    if isinstance(size, bool) or not isinstance(size, numbers.Real):
        raise TypeError(f"an estimator must return bytes as an int or an Estimate, not {type(size).__name__}")
    if not 0 <= size < math.inf:  # type: ignore[operator]
        raise ValueError("an estimator returned a negative number, infinity or NaN, which is no size")
    whole = int(size) if isinstance(size, numbers.Integral) else math.ceil(float(size))
    return max(1, min(whole, MAX_BYTES))


async def heard(
    work: Awaitable[object],
    *,
    seconds: float,
    gone: Callable[[], Awaitable[None]],
    closed: Callable[[], Awaitable[None]],
) -> object:
    """What ``work`` returns. It is cancelled once nobody needs its result any more.

    Raises ``TimeoutError`` after ``seconds``, ``ClientLeft`` after ``gone`` has returned, and
    ``Rejected`` where ``closed`` does.
    """
    waiting = _Waiting()
    async with anyio.create_task_group() as group:
        group.start_soon(waiting.for_client, gone, group.cancel_scope)
        group.start_soon(waiting.for_drain, closed, group.cancel_scope)
        await waiting.for_work(work, seconds)
        group.cancel_scope.cancel()
    if waiting.cause is not None:
        raise waiting.cause
    return waiting.result


class _Waiting:
    """How a wait for an estimator ends: a task group would wrap what its tasks raise."""

    def __init__(self) -> None:
        self.result: object = None
        self.cause: Exception | None = None

    async def for_client(self, gone: Callable[[], Awaitable[None]], scope: anyio.CancelScope) -> None:
        await gone()
        self._end(ClientLeft("the client left while its estimate was made"), scope)

    async def for_drain(self, closed: Callable[[], Awaitable[None]], scope: anyio.CancelScope) -> None:
        try:
            await closed()
        except Rejected as rejected:
            self._end(rejected, scope)

    async def for_work(self, work: Awaitable[object], seconds: float) -> None:
        try:
            with anyio.fail_after(seconds):
                self.result = await work
        except Exception as error:
            self.cause = error

    def _end(self, cause: Exception, scope: anyio.CancelScope) -> None:
        self.cause = cause
        scope.cancel()
