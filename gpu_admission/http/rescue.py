"""An answer whose app ran out of memory, or failed: noticed, and where asked for, ended well.

Owns what is known of an answer that has begun. The app's exception stays as it is: what is
sent here is sent before it goes on, or, with ``oom_status``, in its place.
"""

from __future__ import annotations

from gpu_admission.lease import Lease
from gpu_admission.types import Message, RequestInfo, Send


class Answer:
    """The ``send`` of one request, and what has gone through it."""

    def __init__(self, lease: Lease, send: Send) -> None:
        self._lease = lease
        self._send = send
        self.status = 0
        """0 = it has not begun."""
        self.is_event_stream = False
        self.is_complete = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._begin(message)
        elif message["type"] == "http.response.body" and not message.get("more_body", False):
            self.is_complete = True
        await self._send(message)

    def _begin(self, message: Message) -> None:
        self.status = message["status"]
        headers = dict(message.get("headers", ()))
        self.is_event_stream = headers.get(b"content-type", b"").startswith(b"text/event-stream")
        if self.status >= 400 and self._lease.outcome[0] == "ok":
            name = f"HTTP {self.status}"
            self._lease.outcome = ("client", name) if self.status < 500 else ("error", name)

    async def end_stream(self, info: RequestInfo) -> None:
        """Send the dialect's error event, where an event stream was cut short by the failure."""
        if not self.is_event_stream or self.is_complete:
            return
        from gpu_admission.workloads.events import problem_event

        sse_error = getattr(info.dialect, "sse_error", problem_event)
        event = sse_error("the device ran out of memory", "out_of_memory")
        await self._send({"type": "http.response.body", "body": event, "more_body": False})
