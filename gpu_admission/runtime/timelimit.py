"""A limit on how long one call may take, at no cost while it takes no time.

Most calls of a server's ``receive`` and ``send`` end without waiting, and a timer would cost more than
they do: only one that really waits gets one. What a limit means is said where it is used.
"""

from __future__ import annotations

import asyncio
import math
import types
from collections.abc import Awaitable, Generator
from types import CoroutineType
from typing import Any, TypeGuard, TypeVar

import anyio

from gpu_admission.runtime.loop import running_asyncio

T = TypeVar("T")

NOT_BEGUN: Any = object()


def can_begin(call: Awaitable[Any]) -> TypeGuard[CoroutineType[Any, Any, Any]]:
    """Whether ``call.send(None)`` may run it up to where it first waits, for ``rest`` to go on.

    It then returns what it waits for, or raises ``StopIteration`` with the result. Not a future, nor what
    a server wrote in another language, nor any of trio's, where a limit may only be set before a call
    has opened scopes of its own.
    """
    return type(call) is CoroutineType and running_asyncio() is not None


async def rest(call: Awaitable[T], waits_for: Any, seconds: float) -> T:
    """What ``call`` returns, that was begun and waits for ``waits_for``, or is ``NOT_BEGUN``.

    Raises ``TimeoutError`` after ``seconds``, and cancels it.
    """
    if waits_for is NOT_BEGUN:
        with anyio.fail_after(seconds):
            return await call
    assert isinstance(call, CoroutineType)
    # Not a cancel scope of AnyIO's: the call may be inside of one by now, which has to be the outer one.
    async with asyncio.timeout(None if seconds == math.inf else seconds):
        result: T = await _rest(call, waits_for)
    return result


@types.coroutine
def _rest(call: CoroutineType[Any, Any, T], waits_for: Any) -> Generator[Any, Any, T]:
    """The rest of ``call``, which waits for ``waits_for``: ``yield from``, begun one step later."""
    try:
        while True:
            try:
                answer = yield waits_for
            except GeneratorExit:
                call.close()
                raise
            except BaseException as error:
                waits_for = call.throw(error)
            else:
                waits_for = call.send(answer)
    except StopIteration as done:
        result: T = done.value
        return result
