"""An answer whose app ran out of memory, or failed: noticed, and where asked for, ended well.

Owns what is known of an answer that has begun. The app's exception stays as it is: what is
sent here is sent before it goes on, or, with ``oom_status``, in its place.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable

from gpu_admission.http.respond import response_for
from gpu_admission.lease import Lease
from gpu_admission.types import Message, Receive, RequestInfo, Scope, Send

logger = logging.getLogger("gpu_admission")
_MESSAGE = "the device ran out of memory"


class Answer:
    """The ``send`` of one request, and what has gone through it."""

    is_complete = False
    _start: Message | None = None

    def __init__(self, lease: Lease, send: Send) -> None:
        self._lease = lease
        self._send = send

    def __call__(self, message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            self._start = message
            if message["status"] >= 400 and self._lease.outcome[0] == "ok":
                name = f"HTTP {message['status']}"
                self._lease.outcome = ("client", name) if message["status"] < 500 else ("error", name)
        elif message["type"] == "http.response.body" and not message.get("more_body", False):
            self.is_complete = True
        return self._send(message)

    def returned(self) -> None:
        """The app has returned: without a whole answer, as when its client has left, that tells nothing."""
        if not self.is_complete and self._lease.outcome[0] == "ok":
            self._lease.outcome = ("client", "no answer")

    async def rescue(self, info: RequestInfo, scope: Scope, receive: Receive) -> bool:
        """After running out of memory: whether the client was answered in place of the exception."""
        admission = self._lease.admission
        settings = admission.settings
        if self._start is not None:
            event = self._last_event(info) if settings.oom_event else b""
            if event:
                await self._try(self._send({"type": "http.response.body", "body": event, "more_body": False}))
            return False
        if settings.oom_status is None:
            return False
        rejected = admission.out_of_memory(settings.oom_status)
        return await self._try(response_for(settings.on_reject, info, rejected)(scope, receive, self))

    def _last_event(self, info: RequestInfo) -> bytes:
        """The dialect's error event, where it is one of the stream that was cut short; else empty."""
        assert self._start is not None
        headers = dict(self._start.get("headers", ()))
        if self.is_complete or b"content-encoding" in headers:
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
            logger.info("the answer after out-of-memory could not be sent: %s", type(error).__name__)
            return False
        return True
