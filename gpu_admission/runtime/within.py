"""A limit on how long one call may take, at no cost while it takes no time.

Most calls of a server's ``receive`` and ``send`` end without waiting, and a timer would cost more than
they do: only one that really waits gets one. What a limit means is said where it is used.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Awaitable, Generator
from typing import Any, TypeVar

import anyio

T = TypeVar("T")


def begin(call: Awaitable[Any]) -> Any:
    """Run ``call`` up to where it first waits, and return what it waits for: for ``rest``.

    Raises ``StopIteration`` with what it returns, where it does not wait. Returns ``None`` for what
    can't be begun: a future, what a server wrote in another language, and all of trio's, where a limit
    may only be set before a call has opened scopes of its own.
    """
    if type(call) is not types.CoroutineType or asyncio._get_running_loop() is None:
        return None
    return _Wait(call.send(None))


async def rest(call: Awaitable[T], begun: Any, seconds: float) -> T:
    """What ``call`` returns after ``begin``. Raises ``TimeoutError`` after ``seconds``, and cancels it."""
    if begun is None:
        with anyio.fail_after(seconds):
            return await call
    assert isinstance(call, types.CoroutineType)
    # Not a cancel scope of AnyIO's: the call may be inside of one by now, which has to be the outer one.
    async with asyncio.timeout(seconds):
        result: T = await _rest(call, begun.waits_for)
    return result


class _Wait:
    """What a call waits for: a bare ``yield`` waits for ``None``."""

    __slots__ = ("waits_for",)

    def __init__(self, waits_for: Any) -> None:
        self.waits_for = waits_for


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
