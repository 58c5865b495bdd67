"""An answer whose app ran out of memory, or failed: noticed, and where asked for, ended well.

Owns what is known of an answer that has begun. The app's exception stays as it is: what is
sent here is sent before it goes on, or, with ``oom_status``, in its place.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable

from gpu_admission.admission.context import outside
from gpu_admission.admission.lease import Lease
from gpu_admission.http.respond import response_for
from gpu_admission.request import RequestInfo
from gpu_admission.types import Message, Receive, Scope, Send

logger = logging.getLogger("gpu_admission")
_MESSAGE = "the device ran out of memory"


class Answer:
    """The ``send`` of one request, and what has gone through it.

    The last message is sent as if ``lease`` were not held: see ``outside``. Frameworks answer
    500 by themselves and then let the exception out: under ``oom_status`` such an answer is
    kept until the app has returned, or another is sent in its place.
    """

    is_whole = False
    """Nothing is left to be sent."""
    _start: Message | None = None
    _kept: list[Message] | None = None

    def __init__(self, lease: Lease, send: Send) -> None:
        self._lease = lease
        self._send = send

    def __call__(self, message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            self._start = message
            if message["status"] >= 400:
                self._failed(message["status"])
        elif self._kept is None and not message.get("more_body", False):
            self.is_whole = self._start is not None
            return outside(self._lease, self._send, message)
        return self._send(message) if self._kept is None else self._keep(message)

    def _failed(self, status: int) -> None:
        lease = self._lease
        if lease.outcome[0] == "ok":
            lease.outcome = ("client" if status < 500 else "error", f"HTTP {status}")
        if status == 500 and lease.issuer.settings.oom_status is not None:
            self._kept = []

    async def _keep(self, message: Message) -> None:
        assert self._kept is not None
        self._kept.append(message)
        if message.get("more_body", False):
            # Longer than an error page: the app's own stream.
            await self.let_go()

    async def let_go(self) -> None:
        """Send what was kept."""
        kept, self._kept = self._kept or (), None
        for message in kept:
            await outside(self._lease, self._send, message)

    async def returned(self) -> None:
        """The app has returned without a whole answer: as when its client has left, that tells nothing."""
        if self._lease.outcome[0] == "ok":
            self._lease.outcome = ("client", "no answer")
        await self.let_go()

    async def rescue(self, error: Exception, info: RequestInfo, scope: Scope, receive: Receive) -> bool:
        """The app has raised ``error``: whether its client was answered in place of it."""
        issuer = self._lease.issuer
        settings = issuer.settings
        asked = settings.oom_event or settings.oom_status is not None
        if not asked or issuer.classify(error)[0] != "oom":
            await self._try(self.let_go())
            return False
        if self._start is None or self._kept is not None:
            status = settings.oom_status
            return status is not None and await self._replace(status, info, scope, receive)
        event = self._last_event(info) if settings.oom_event else b""
        if event:
            await self._try(self._send({"type": "http.response.body", "body": event, "more_body": False}))
        return False

    async def _replace(self, status: int, info: RequestInfo, scope: Scope, receive: Receive) -> bool:
        issuer = self._lease.issuer
        rejected = issuer.out_of_memory(status)
        respond = response_for(issuer.settings.on_reject, info, rejected)
        return await self._try(respond(scope, receive, self._send))

    def _last_event(self, info: RequestInfo) -> bytes:
        """The dialect's error event, where it is one of the stream that was cut short; else empty."""
        assert self._start is not None
        headers = dict(self._start.get("headers", ()))
        if self.is_whole or b"content-encoding" in headers:
            return b""
        from gpu_admission.workloads.events import problem_event

        event: bytes = getattr(info.dialect, "sse_error", problem_event)(_MESSAGE, "out_of_memory")
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if kind == b"application/x-ndjson":
            return event if event.startswith(b"{") else b""
        return event if kind == b"text/event-stream" and not event.startswith(b"{") else b""

    async def _try(self, sending: Awaitable[None]) -> bool:
        """Whether it was sent: a client that has gone must not hide the app's exception."""
        try:
            await sending
        except Exception as error:
            logger.info("the answer after a failure could not be sent: %s", type(error).__name__)
            return False
        return True
