"""A server's ``receive``, called ahead of the app while its request waits.

Owns that no message is lost when the waiting ends in the middle of a call: some servers and
middlewares (granian, Starlette's ``BaseHTTPMiddleware``) have taken a message off their queue by
the time they are cancelled, and drop it: the app would read a body with a hole in it, or never
hear that its client has left. What a message means is in ``body``.
"""

from __future__ import annotations

import asyncio

from gpu_admission.runtime.loop import running_asyncio
from gpu_admission.types import Message, Receive


class Ahead:
    """A ``receive`` that may have a call under way already.

    On asyncio that call runs in a task of its own, which outlives whatever waits for it. On trio it
    is simply awaited: there a cancelled ``receive`` has received nothing.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._task: asyncio.Future[Message] | None = None

    async def call(self) -> Message:
        """The next message. Cancelled, the call goes on, and the next call returns its message."""
        if self._task is None and running_asyncio() is not None:
            self._task = asyncio.ensure_future(self._receive())
        return await self()

    async def __call__(self) -> Message:
        """The next message, from the call that is under way, or else from one that is made now."""
        task, self._task = self._task, None
        if task is None:
            return await self._receive()
        try:
            # Shielded: a cancelled wait must not cancel the server's call, which may hold a message.
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                self._task = task
            raise

    def close(self) -> None:
        """The request is over: give up a call that is still under way."""
        if self._task is not None:
            self._task.cancel()
