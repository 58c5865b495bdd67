"""Looks at an answer on its way out for the usage it reports, for estimators that learn from it.

Owns which bytes are remembered: a bounded number of the answer's last, and of a stream's first. Each
message is passed on at once and unchanged; they are read when the last one has gone. What each API
calls its usage is in ``workloads.usage``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable

from gpu_admission.types import Message, Send, Usage
from gpu_admission.workloads.usage import HEAD_BYTES, KINDS, TAIL_BYTES, usage_of


class Answer:
    """The ``send`` of one request, and what has gone through it."""

    __slots__ = ("_head", "_kept", "_kind", "_send", "_size", "_tail", "pieces", "usage")

    def __init__(self, send: Send) -> None:
        self._send = send
        self._kind: str | None = None
        self._head: list[bytes] = []
        self._tail: deque[bytes] = deque()
        self._kept = 0
        self._size = 0
        self.pieces = 0
        """Messages of a stream so far: at least as many tokens, except for a few messages that carry none."""
        self.usage: Usage | None = None
        """The usage that the whole answer reported."""

    def __call__(self, message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            self._kind = _kind_of(message)
            return self._send(message)
        if self._kind is not None:
            body = message.get("body")
            if body:
                self._keep(body)
            if not message.get("more_body", False):
                return self._last(message)
        return self._send(message)

    def _keep(self, body: bytes) -> None:
        tail, size = self._tail, len(body)
        if self._size < HEAD_BYTES:
            self._head.append(body[:HEAD_BYTES])
        self.pieces += 1
        self._size += size
        if size > TAIL_BYTES:
            body, size = body[-TAIL_BYTES:], TAIL_BYTES
        self._kept = kept = self._kept + size
        tail.append(body)
        if kept > TAIL_BYTES:
            while kept - len(tail[0]) >= TAIL_BYTES:
                kept -= len(tail.popleft())
            self._kept = kept

    async def _last(self, message: Message) -> None:
        await self._send(message)
        kind, self._kind = self._kind, None
        assert kind is not None
        is_whole = self._size == self._kept
        tail = b"".join(self._tail)
        self._tail.clear()
        self.usage = usage_of(kind, tail, head=b"".join(self._head), is_whole=is_whole)
        self._head.clear()


def _kind_of(start: Message) -> str | None:
    """How to read the answer; ``None`` if it isn't read: another content type, compressed, or an error."""
    kind = None
    if start["status"] >= 300:
        return None
    for name, value in start.get("headers", ()):
        name = name.lower()
        if name == b"content-type":
            kind = KINDS.get(value.partition(b";")[0].strip().lower())
        elif name == b"content-encoding" and value.strip().lower() != b"identity":
            return None
    return kind
