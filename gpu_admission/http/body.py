"""A request's body: read once, counted as it arrives, and replayed as the messages that came.

Owns the messages between the server's ``receive`` and the app's, and their limits of size and
time. What a body means is read in ``workloads``; what it costs in ``estimators``.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

import anyio
import anyio.lowlevel
import msgspec

from gpu_admission.admission.buffered import BufferedBytes
from gpu_admission.admission.context import innermost, step_in
from gpu_admission.admission.lease import Lease
from gpu_admission.errors import BodyTimeout, ClientLeft, Rejected, TooLarge
from gpu_admission.http.ahead import Ahead
from gpu_admission.http.growing import Growing
from gpu_admission.http.spool import Spool
from gpu_admission.runtime.loop import running_asyncio
from gpu_admission.runtime.timelimit import ENDED, NOT_BEGUN, rest
from gpu_admission.sizes import format_bytes
from gpu_admission.types import Message, Receive, Scope

WATCHED_BYTES = 64 * 1024
"""Bytes that a waiting client may send ahead; beyond that its upload is slowed down."""
LOOK_SECONDS = 0.5
"""Seconds between messages taken from a slowed upload: a disconnect is only seen behind them."""
MANY_MESSAGES = 256
MESSAGE_BYTES = 256
"""Memory that a message takes beyond its bytes. Counted when a body comes in more than
``MANY_MESSAGES``: cut into single bytes, it would hold hundreds of times its size."""
SPOOLED_BEYOND = 128 * 1024
"""Of a body longer than this, what comes next is spooled."""
LONGEST_SPOOLED = 512 * 1024
"""A longer message is kept as it came: a copy would take the event loop's time."""
STEP_MESSAGES = 32
"""After this many messages other tasks get a turn."""
LEAST_RATE = 4096
"""Bytes a second that an upload must reach beyond its first ``body_timeout`` seconds."""


class Limits(Protocol):
    """The settings that bound an upload."""

    @property
    def max_body_bytes(self) -> int: ...
    @property
    def body_timeout(self) -> float: ...


class Body(msgspec.Struct, eq=False):
    """The ``receive`` that the app gets. After the messages that were read it is the server's own.

    A disconnect that was seen is returned again on every later call, without suspending.
    """

    _receive: Receive
    _buffer: BufferedBytes
    _limits: Limits
    _scope: Scope
    is_free: bool = False
    """The app may read the rest without limits: it has begun to answer, or nothing is enforced."""
    loop: asyncio.AbstractEventLoop | None = msgspec.field(default_factory=running_asyncio)
    """The running event loop where it is asyncio's, looked up once. See ``ENDED``."""
    complete: bool = False
    """Its last message has been received."""
    size: int = 0
    counted: int = 0
    """Bytes that are counted as buffered."""
    disconnected: Message | None = None
    failure: Exception | None = None
    """What the server's ``receive`` raised: the app hears of it when it reads."""
    ahead: Ahead | None = None
    """The server's ``receive``, once the client was watched."""
    refusal: Rejected | None = None
    """Why the app did not get the rest of it. If no response has begun, this refusal is the response."""
    lease: Lease | None = None
    """The lease that is held while the app reads; the server's ``receive`` runs outside of it."""
    _messages: deque[Message | int] | None = None
    """What has come before the app asked; an int for so many bytes in the spool, with more to come."""
    _spool: Spool | None = None
    _taken: Message | None = None
    _extra: int = 0
    _began: float = 0.0
    _repeats: bool = False

    def __repr__(self) -> str:
        return f"<Body of {self.size} bytes so far>"  # never what a client wrote

    async def __call__(self) -> Message:
        if self._messages:
            if self._spool is not None:
                await self._copies(self._messages[0])
            kept = self._messages.popleft()
            return self._unspooled(kept) if isinstance(kept, int) else kept
        if self.disconnected is not None:
            return self.disconnected
        if self.failure is not None:
            raise self.failure
        if self.refusal is not None and not self.is_free:
            raise self.refusal
        lease, inside = self.lease, innermost()
        if lease is not None:
            step_in(lease.outer)  # see ``context.outside``
        try:
            call, waits_for = self._take(), NOT_BEGUN
            if self.loop is not None:
                waits_for = next(call.__await__(), ENDED)
            if waits_for is not ENDED:
                await self._waited_for(call, waits_for)
        finally:
            if lease is not None:
                step_in(inside)
        message, self._taken = self._taken, None  # ``_came``
        assert message is not None
        if message["type"] == "http.disconnect":
            self.disconnected = message
        elif not self.complete:
            self._pass_on(message)
        return message

    async def _copies(self, kept: Message | int) -> None:
        """Wait for a step of the loop that may copy these bytes: many uploads at once would hold it up."""
        if isinstance(kept, int) and not self._buffer.copied.has_room(kept):
            await self._buffer.copied.enter(kept)

    def _unspooled(self, size: int) -> Message:
        assert self._spool is not None
        return {"type": "http.request", "body": self._spool.take(size), "more_body": True}

    def _pass_on(self, message: Message) -> None:
        """Count what the app itself reads, against the same limit. Raises ``TooLarge``."""
        if message["type"] != "http.request":
            return
        self.size = size = self.size + len(message.get("body", b""))
        if not message.get("more_body", False):
            self.complete = True
        if size > self._limits.max_body_bytes and not self.is_free:
            self.refusal = self._too_large()
            raise self.refusal

    def read_here(self) -> Awaitable[None] | None:
        """Read what has come so far. Returns what remains to be awaited, if anything. Raises ``Rejected``."""
        call, waits_for = self._take(), NOT_BEGUN
        if self.loop is not None:
            waits_for = next(call.__await__(), ENDED)
        if waits_for is not ENDED:
            return self._read_on(call, waits_for)
        self._keep(self._came())
        # A body that came in one small piece is counted when it has to wait.
        return None if self.complete and self.size <= WATCHED_BYTES else self.read()

    async def read(self) -> None:
        """Read to the end of the body. Raises ``Rejected`` or ``ClientLeft``."""
        self._check_kept()
        while not self.complete:
            if self._messages is not None and len(self._messages) % STEP_MESSAGES == 0:
                await anyio.lowlevel.checkpoint()  # else a server that has it all never lets the loop run
            call, waits_for = self._take(), NOT_BEGUN
            if self.loop is not None:
                waits_for = next(call.__await__(), ENDED)
            if waits_for is not ENDED:
                await self._waited_for(call, waits_for)
            self._keep(self._came())
            self._check_kept()
            if self._spool is not None and self._messages is not None:
                await self._copies(self._messages[-1])

    async def _read_on(self, call: Awaitable[None], waits_for: Any) -> None:
        await self._waited_for(call, waits_for)
        self._keep(self._came())
        await self.read()

    async def _take(self) -> None:
        """The server's next message, for ``_came``: see ``ENDED``."""
        try:
            self._taken = await self._receive()
        except Exception as error:
            self.failure = error
            raise

    def _came(self) -> Message:
        message, self._taken = self._taken, None
        assert message is not None
        return message

    def _check_kept(self) -> None:
        self.count()
        if self.disconnected is not None:
            raise ClientLeft("the client left while its body was read")

    async def _waited_for(self, call: Awaitable[None], waits_for: Any) -> None:
        """The rest of ``call``, which has to end within the limits of time."""
        try:
            await rest(call, waits_for, self._patience())
        except TimeoutError:
            self.refusal = BodyTimeout(
                f"the body came too slowly: body_timeout={self._limits.body_timeout:g} s without a byte, "
                f"or in all with less than {format_bytes(LEAST_RATE)}/s"
            )
            raise self.refusal from None

    def _patience(self) -> float:
        """Seconds that the next message may take, so that neither it nor the whole upload takes too long."""
        if self.is_free or self.complete:
            return math.inf
        longest, now = self._limits.body_timeout, anyio.current_time()
        self._began = self._began or now
        return min(longest, max(0.0, self._began + longest + self.size / LEAST_RATE - now))

    async def watch(self) -> None:
        """Return when the client has left (or its upload can't be held); never raises ``Exception``.

        Every message that it receives is kept for the app.
        """
        try:
            self.count()
            if self.ahead is None:
                self._receive = self.ahead = Ahead(self._receive)
            await self._look(self.ahead)
        except Exception as error:
            self.failure = error

    async def _look(self, ahead: Ahead) -> None:
        while not (self.complete or self.disconnected):
            if self.size > WATCHED_BYTES:
                # The server reports that a client has left only behind all that it sent: without looking
                # on, a phantom would keep its place in the queue for as long as requests may wait.
                await anyio.sleep(LOOK_SECONDS)
                if not self._buffer.has_room(WATCHED_BYTES, self._client()):
                    continue
            self._keep(await ahead.call())
            self.count()
        if self.complete and self.disconnected is None and not self._repeats:
            # Only a disconnect can follow. A receive that repeats the body, as some
            # middlewares leave it behind, would never suspend: it is asked once.
            self._keep(await ahead.call())
            self._repeats = self.disconnected is None
        if self.disconnected is None:
            await anyio.sleep_forever()

    def close(self) -> None:
        """The request is over: a ``receive`` that is still under way is given up."""
        if self.ahead is not None:
            self.ahead.close()

    @property
    def whole(self) -> bytes | None:
        """The body as it came, if that was in one message; ``None``: ``content`` has to copy it."""
        messages = self._messages
        if not messages or len(messages) != 1 or isinstance(messages[0], int):
            return None
        body: bytes = messages[0].get("body", b"")
        return body

    def content(self) -> bytes:
        """The whole body, as it came. One copy, none where it came in one piece."""
        whole = self.whole
        return _joined(self._messages or (), self._spool) if whole is None else whole

    def replace(self, content: bytes) -> None:
        """Make ``content`` the whole body that the app gets."""
        self._messages = deque([{"type": "http.request", "body": content, "more_body": False}])
        self._spool = None

    def check_room(self, size: int) -> None:
        """Raise ``QueueFull`` if a body of ``size`` bytes can't be held now, before any of it is received."""
        self._buffer.check(size, self._client())

    def drop(self) -> None:
        """Keep nothing of what has come: the app will not ask for it."""
        self._messages = self._spool = None

    def count(self) -> None:
        """Count what is held by now. Raises ``QueueFull``."""
        more = self.size + self._extra - self.counted
        if more:
            self._buffer.take(more, self._client())
            self.counted += more

    def keeps_besides(self, size: int) -> None:
        """Count ``size`` bytes more while the request waits."""
        self._extra += size

    def _client(self) -> str | None:
        client = self._scope.get("client")
        return client[0] if client else None

    def hand_over(self) -> None:
        """The wait is over: what is buffered belongs to the app now and is no longer counted."""
        if self.counted:
            self._buffer.give(self.counted, self._client())
            self.counted = 0
            self._extra = 0

    def _keep(self, message: Message) -> None:
        kind = message["type"]
        if kind == "http.disconnect":
            self.disconnected = message
            return
        if not self._messages:
            self._messages = deque((message,))
        else:
            self._messages.append(self._spooled(message) if self.size > SPOOLED_BEYOND else message)
            if len(self._messages) > MANY_MESSAGES and kind == "http.request" and not self.complete:
                self._extra += MESSAGE_BYTES
        if kind == "http.request" and not self.complete:
            size = self.size + len(message.get("body", b""))
            if size > self._limits.max_body_bytes:
                raise self._too_large()
            self.size = size
            if not message.get("more_body", False):
                self.complete = True

    def _spooled(self, message: Message) -> Message | int:
        """``message``, or its size if its bytes have gone to the spool."""
        body: bytes = message.get("body", b"")
        if len(body) > LONGEST_SPOOLED or message["type"] != "http.request" or not message.get("more_body"):
            return message
        if self._spool is None:
            self._spool = Spool()
        self._spool.append(body)
        return len(body)

    def _too_large(self) -> TooLarge:
        limit = format_bytes(self._limits.max_body_bytes)
        return TooLarge("body_too_large", f"the body is larger than max_body_bytes={limit}")


def _joined(messages: Sequence[Message | int], spool: Spool | None) -> bytes:
    """Their bytes in one piece, appended one by one: a single large copy would hold up other threads."""
    at = 0
    with Growing() as growing:
        for message in messages:
            if not isinstance(message, int):
                growing.write(message.get("body", b""))
            elif spool is not None:
                growing.write(spool.look(at, message))
                at += message
        return growing.whole()
