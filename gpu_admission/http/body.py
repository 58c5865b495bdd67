"""A request's body: read once, counted as it arrives, and replayed as the messages that came.

Owns the messages between the server's ``receive`` and the app's. What a body means is read
in ``workloads``; what it costs in ``estimators``.
"""

from __future__ import annotations

import anyio

from gpu_admission.admission.buffered import BufferedBytes
from gpu_admission.admission.context import outside
from gpu_admission.admission.lease import Lease
from gpu_admission.errors import ClientLeft, TooLarge
from gpu_admission.http.ahead import Ahead
from gpu_admission.sizes import format_bytes
from gpu_admission.types import Message, Receive

WATCHED_BYTES = 64 * 1024
"""A client that is watched while it waits may send this much ahead; then its upload pauses."""
MANY_MESSAGES = 256
MESSAGE_BYTES = 256
"""What a message takes beside its bytes. Counted for a body that comes in more than ``MANY_MESSAGES``:
cut into single bytes, it would hold hundreds of times its size."""


class Body:
    """The ``receive`` that the app gets. After the messages that were read it is the server's own.

    A disconnect that was seen is returned again on every later call, without suspending.
    """

    __slots__ = (
        "_backwards",
        "_buffer",
        "_extra",
        "_limit",
        "_messages",
        "_receive",
        "complete",
        "disconnected",
        "failure",
        "lease",
        "size",
    )

    def __init__(self, receive: Receive, buffer: BufferedBytes, limit: int) -> None:
        self._receive: Receive = receive
        self._buffer = buffer
        self._limit = limit
        self._messages: list[Message] = []
        self._backwards = False
        """Whether they have been turned round, so that the app takes each from the end of the list."""
        self._extra = 0
        self.size = 0
        self.complete = False
        self.disconnected: Message | None = None
        self.failure: Exception | None = None
        """What the server's ``receive`` raised while the client was watched."""
        self.lease: Lease | None = None
        """The lease that is held while the app reads; the server's ``receive`` runs outside of it."""

    async def __call__(self) -> Message:
        if self._messages:
            if not self._backwards:
                self._backwards = True
                self._messages.reverse()
            return self._messages.pop()
        if self.disconnected is not None:
            return self.disconnected
        message = await (self._receive() if self.lease is None else outside(self.lease, self._receive))
        if message["type"] == "http.disconnect":
            self.disconnected = message
        return message

    async def read(self) -> None:
        """Read to the end of the body. Raises ``TooLarge``, ``QueueFull`` or ``ClientLeft``."""
        while not self.complete:
            self._keep(await self._receive())
            if self.disconnected is not None:
                raise ClientLeft("the client left while its body was read")

    async def watch(self) -> None:
        """Return when the client has left (or its upload can't be held); never raises ``Exception``.

        Every message that it receives is kept for the app.
        """
        self._receive = ahead = Ahead(self._receive)
        try:
            while not (self.complete or self.disconnected) and self.size <= WATCHED_BYTES:
                self._keep(await ahead.call())
            if self.complete and self.disconnected is None:
                # Nothing but a disconnect can follow. A receive that repeats the body, as some
                # middlewares leave it behind, would never suspend: it is asked once.
                self._keep(await ahead.call())
        except Exception as error:
            self.failure = error
            return
        if self.disconnected is None:
            await anyio.sleep_forever()

    def close(self) -> None:
        """The request is over: a ``receive`` that is still under way is given up."""
        if isinstance(self._receive, Ahead):
            self._receive.close()

    def content(self) -> bytes:
        """The whole body, as it came. One copy, none where it came in one piece."""
        if len(self._messages) == 1:
            body: bytes = self._messages[0].get("body", b"")
            return body
        return b"".join(message.get("body", b"") for message in self._messages)

    def replace(self, content: bytes) -> None:
        """Make ``content`` the whole body that the app gets."""
        self._messages = [{"type": "http.request", "body": content, "more_body": False}]

    def hand_over(self) -> None:
        """It waits no more: what is buffered is the app's now, and not counted any longer."""
        self._buffer.give(self.size + self._extra)

    def _keep(self, message: Message) -> None:
        kind = message["type"]
        if kind == "http.disconnect":
            self.disconnected = message
            return
        self._messages.append(message)
        if kind == "http.request" and not self.complete:
            self._count(len(message.get("body", b"")))
            self.complete = not message.get("more_body", False)

    def _count(self, size: int) -> None:
        if self.size + size > self._limit:
            raise TooLarge(
                "body_too_large", f"the body is larger than max_body_bytes={format_bytes(self._limit)}"
            )
        extra = MESSAGE_BYTES if len(self._messages) > MANY_MESSAGES else 0
        self._buffer.take(size + extra)
        self.size += size
        self._extra += extra
