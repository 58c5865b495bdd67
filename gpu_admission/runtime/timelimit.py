"""A limit on how long one call may take, at no cost while it takes no time.

Most calls of a server's ``receive`` and ``send`` end without waiting, and a timer would cost more than
the call: only a call that really waits gets one. What a limit means is said where it is used.
"""

from __future__ import annotations

import asyncio
import math
import types
from collections.abc import Awaitable, Generator
from types import CoroutineType
from typing import Any, TypeVar

import anyio

T = TypeVar("T")

NOT_BEGUN: Any = object()
ENDED: Any = object()
"""``next(call.__await__(), ENDED)`` runs a coroutine up to where it first waits, for ``rest`` to go on.

It gives what the coroutine waits for, or ``ENDED``; its result is lost, but no ``StopIteration`` is made,
which costs more than most servers' calls. Only where ``running_asyncio()`` is not ``None``: on trio a limit
may only be set before a call has opened scopes of its own.
"""


async def rest(call: Awaitable[T], waits_for: Any, seconds: float) -> T:
    """What ``call`` returns; it has begun and waits for ``waits_for``, unless that is ``NOT_BEGUN``.

    Raises ``TimeoutError`` after ``seconds``, and cancels the call.
    """
    if waits_for is NOT_BEGUN:
        with anyio.fail_after(seconds):
            return await call
    assert isinstance(call, CoroutineType)
    # Not AnyIO's cancel scope: the call may have entered one by now, which would have to be the outer one.
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
