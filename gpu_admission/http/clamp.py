"""Fewer new tokens for a hot device: the body rewritten, for those who opted in.

Owns what changes in the request: the token limit in the body, byte for byte the rest as it
came, its ``Content-Length``, and the header that tells the client.
"""

from __future__ import annotations

from gpu_admission.errors import UnreadableBody
from gpu_admission.http.body import Body
from gpu_admission.types import Message, RequestInfo, Scope, Send

HEADER = b"x-gpu-admission-max-tokens"


def clamped(scope: Scope, body: Body, info: RequestInfo, factor: float) -> int | None:
    """Lower the request's limit by ``factor``; the new one, or ``None`` where there is none to lower."""
    try:
        clamp = getattr(info.dialect, "clamp", None)
        asked = info.workload.new_tokens
        limit = max(1, int(asked * factor))
        if clamp is None or limit >= asked:
            return None
        shorter = clamp(info.body, limit)
    except UnreadableBody:
        return None
    body.replace(shorter)
    headers = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
    scope["headers"] = [*headers, (b"content-length", b"%d" % len(shorter))]
    info.read_from(body.content)
    return limit


def told_of(limit: int, send: Send) -> Send:
    """``send``, with the limit that was set told in a header of the answer."""

    async def send_message(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [*message.get("headers", ()), (HEADER, b"%d" % limit)]
            message = {**message, "headers": headers}
        await send(message)

    return send_message
