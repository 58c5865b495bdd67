"""Fewer new tokens for a hot device: the body rewritten, for those who opted in.

Owns what changes in the request: the token limit in the body, byte for byte the rest as it
came, its ``Content-Length``, and the header that tells the client. A compressed body is not
clamped, nor one that its dialect can't read.
"""

from __future__ import annotations

from collections.abc import Awaitable

from gpu_admission.errors import UnreadableBody
from gpu_admission.http.body import Body
from gpu_admission.request import RequestInfo
from gpu_admission.runtime.failure import log_failure
from gpu_admission.types import Message, Scope, Send

HEADER = b"x-gpu-admission-max-tokens"


def clamped_body(info: RequestInfo, factor: float) -> tuple[int, bytes] | None:
    """The limit after applying ``factor``, and the body with that limit; ``None``: nothing changes."""
    try:
        asked = info.workload.new_tokens
        limit = max(1, int(asked * factor))
        shorter = info.dialect.clamp(info.body, limit) if limit < asked else info.body
    except UnreadableBody:
        return None
    except Exception as error:  # a user's own dialect failed: that must not lose the request
        log_failure(f"clamping failed on {info.dialect_name}", error, "the request stays as it is")
        return None
    return None if shorter == info.body else (limit, shorter)


def clamp(scope: Scope, body: Body, info: RequestInfo, limit: int, shorter: bytes) -> int:
    """Make ``shorter`` the body that the app, and ``info``, see; returns its ``limit``."""
    body.replace(shorter)
    length = b"%d" % len(shorter)
    scope["headers"] = [
        (name, length if name == b"content-length" else value) for name, value in scope["headers"]
    ]
    info.read_from(body.content)
    return limit


def told_of(limit: int, send: Send) -> Send:
    """``send``, with the limit that was set told in a header of the answer."""

    def send_message(message: Message) -> Awaitable[None]:
        if message["type"] != "http.response.start":
            return send(message)
        headers = [*message.get("headers", ()), (HEADER, b"%d" % limit)]
        return send({**message, "headers": headers})

    return send_message
