"""A limit on how long one call may take, at no cost while it takes no time.

Owns that most calls of a server's ``receive`` and ``send`` end without waiting: only one that really
waits gets a timer. What a limit means is said where it is used.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Awaitable, Generator
from typing import Any, TypeVar

import anyio

T = TypeVar("T")


async def within(seconds: float, call: Awaitable[T]) -> T:
    """What ``call`` returns. Raises ``TimeoutError`` after ``seconds``; then it is cancelled."""
    if asyncio._get_running_loop() is None:
        with anyio.fail_after(seconds):
            return await call
    if type(call) is not types.CoroutineType:  # a future, or what a server wrote in another language
        async with asyncio.timeout(seconds):
            return await call
    try:
        waits_for = call.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    # Not a cancel scope of AnyIO's: the call may be inside of one by now, which has to be the outer one.
    async with asyncio.timeout(seconds):
        return await _rest(call, waits_for)


@types.coroutine
def _rest(call: types.CoroutineType[Any, Any, T], waits_for: Any) -> Generator[Any, Any, T]:
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
