"""A refusal as a response. The exception knows its status; nothing here decides."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Mapping
from typing import Any

from starlette.responses import Response

from gpu_admission.errors import Rejected
from gpu_admission.request import RequestInfo
from gpu_admission.runtime.failure import log_failure
from gpu_admission.types import ASGIApp, Message, Receive, Scope, Send

_TITLES = {
    "too_large": "The request can never fit on the device",
    "body_too_complex": "The request body has too many JSON values",
    "body_too_large": "The request body is too large",
    "body_timeout": "The request body came too slowly",
    "queue_full": "Too many requests are waiting",
    "queue_timeout": "The device stayed busy for too long",
    "deadline": "The device stayed busy past the request's deadline",
    "gpu_unavailable": "The device takes no work now",
    "draining": "The server is shutting down",
    "unreadable_body": "The request body can't be read",
}
_OPENAI_TYPES = {413: "invalid_request_error", 400: "invalid_request_error", 429: "rate_limit_error"}


def response_for(on_reject: Any, info: RequestInfo, rejected: Rejected) -> ASGIApp:
    """The answer to a refused request: the setting ``on_reject``, with the headers that each one carries."""
    response = _render(on_reject, info, rejected)
    return _headers_only(response) if info.method == "HEAD" else response


def _render(on_reject: Any, info: RequestInfo, rejected: Rejected) -> ASGIApp:
    if not callable(on_reject):
        return openai(rejected) if on_reject == "openai" else problem(rejected)
    try:
        response = on_reject(info, rejected)
        if not isinstance(response, Response):
            raise TypeError(f"on_reject must return a Response, not {type(response).__name__}")
    except Exception as error:
        log_failure("on_reject failed", error, "problem+json is sent instead")
        return problem(rejected)
    return _with_headers(response, rejected.headers or {})


def _with_headers(response: Response, headers: Mapping[str, str]) -> ASGIApp:
    """``response`` with those of ``headers`` that it lacks: a copy, since it may be sent many times."""
    wanted = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        def send_message(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                own = {name.lower() for name, _ in message["headers"]}
                missing = [header for header in wanted if header[0] not in own]
                message = {**message, "headers": [*message["headers"], *missing]}
            return send(message)

        await response(scope, receive, send_message)

    return answer


def _headers_only(response: ASGIApp) -> ASGIApp:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_message(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b""})

        await response(scope, receive, send_message)

    return answer


def problem(rejected: Rejected) -> Response:
    """RFC 9457 problem details."""
    body = {
        "type": f"urn:gpu-admission:{rejected.reason}",
        "title": rejected.title or _TITLES.get(rejected.reason, "The request was refused"),
        "status": rejected.status,
        "detail": rejected.detail,
        "reason": rejected.reason,
        "needed_bytes": rejected.needed,
        "capacity_bytes": rejected.capacity,
        "waiting": rejected.waiting,
    }
    return _response(rejected, body, "application/problem+json")


def openai(rejected: Rejected) -> Response:
    """The error body of the OpenAI API."""
    error = {
        "message": rejected.detail,
        "type": _OPENAI_TYPES.get(rejected.status, "server_error"),
        "param": None,
        "code": rejected.reason,
    }
    return _response(rejected, {"error": error}, "application/json")


def _response(rejected: Rejected, body: Any, media_type: str) -> Response:
    return Response(json.dumps(body), rejected.status, rejected.headers, media_type)
