"""``status_app``: the status page, as an app to mount. One address: a page, JSON, or a stream, by ``Accept``.

Owns who may look and how it is sent. It is read-only, and answers nobody unless the caller says
who may look: what it shows is for operators. What is shown is put together in ``board``.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import inspect
import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

import anyio
import msgspec
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from gpu_admission.observe.board import Board
from gpu_admission.observe.webpage import Webpage
from gpu_admission.types import ASGIApp, Receive, Scope, Send

if TYPE_CHECKING:
    from gpu_admission.admission import Admission

Allow: TypeAlias = Callable[[HTTPConnection], bool | Awaitable[bool]]

_HEADERS = {
    "Cache-Control": "no-store",
    "Vary": "Accept, Authorization",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_EVERY = 0.25
_STREAM_SECONDS = 5.0
"""A stream ends after this and the page opens the next: an endless one would hold up a server's shutdown."""
_MOST_STREAMS = 32
_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip")


def status_app(admission: Admission, *, token: str | None = None, allow: Allow | None = None) -> ASGIApp:
    """The status page of ``admission``, for ``app.mount("/gpu", status_app(admission, token=...))``.

    You have to say who may look: whoever sends ``token`` (as a bearer token, or as the password
    that a browser asks for), or whomever ``allow(connection)`` lets in, such as ``local_only``.
    Raises ``TypeError`` when neither or both are given, and ``ValueError`` for a token that is
    short enough to be guessed.
    """
    if (token is None) == (allow is None):
        raise TypeError(
            "say who may see the status page: either token='...', or allow=callable "
            "(gpu_admission.observe.local_only lets in who sits at this machine)"
        )
    if token is not None and len(token) < 16:
        raise ValueError("token must have at least 16 characters: it is all that guards the page")
    return StatusApp(_board(admission), token, allow)


def _board(admission: Admission) -> Board:
    """The board of ``admission``; mounted twice, it is kept once."""
    for observer in admission.observers:
        if isinstance(observer, Board):
            return observer
    board = Board()
    admission.observe(board)
    return board


def local_only(connection: HTTPConnection) -> bool:
    """Whether the client is on this machine, asked for it by a local name, and came through no proxy.

    A proxy on this machine that forwards strangers without saying so can't be told from a
    local client: use a token there.
    """
    if connection.client is None or any(name in connection.headers for name in _FORWARDED):
        return False
    # The name is checked for DNS rebinding: a page from elsewhere must not read this one.
    return _is_local(connection.client.host) and _is_local(connection.url.hostname or "")


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class StatusApp:
    """An ASGI app; see ``status_app``."""

    def __init__(self, board: Board, token: str | None, allow: Allow | None) -> None:
        self._board = board
        self._token = None if token is None else token.encode()
        self._allow = allow
        self._page = Webpage()
        self._streams = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
            return
        if scope["type"] != "http":
            return
        response = await self._respond(HTTPConnection(scope), scope["method"])
        response.headers.update(_HEADERS)
        await response(scope, receive, send)

    async def _respond(self, connection: HTTPConnection, method: str) -> Response:
        if method not in ("GET", "HEAD"):
            return PlainTextResponse("this page is read-only", 405, {"Allow": "GET, HEAD"})
        refusal = await self._refusal(connection)
        if refusal is not None:
            return refusal
        wanted = preferred(connection.headers.get("accept", ""))
        if wanted == "text/html":
            return self._page.response()
        if wanted == "text/event-stream" and method == "GET":
            return self._stream()
        return Response(msgspec.json.encode(self._board.state()), media_type="application/json")

    async def _refusal(self, connection: HTTPConnection) -> Response | None:
        if self._token is not None:
            if hmac.compare_digest(_sent_token(connection), self._token):
                return None
            challenge = {"WWW-Authenticate": 'Basic realm="gpu_admission", charset="UTF-8"'}
            return PlainTextResponse("a token is needed to see this page", 401, challenge)
        allowed = self._allow(connection) if self._allow is not None else False
        if inspect.isawaitable(allowed):
            allowed = await allowed
        return None if allowed is True else PlainTextResponse("you may not see this page", 403)

    def _stream(self) -> Response:
        if self._streams >= _MOST_STREAMS:
            return PlainTextResponse("too many streams are open: ask for JSON now and then", 503)
        unbuffered = {"X-Accel-Buffering": "no"}
        return StreamingResponse(self._events(), media_type="text/event-stream", headers=unbuffered)

    async def _events(self) -> AsyncIterator[bytes]:
        self._streams += 1
        try:
            yield b"retry: 250\n\n"
            for _ in range(round(_STREAM_SECONDS / _EVERY)):
                state = self._board.state()
                yield b"data: " + msgspec.json.encode(state) + b"\n\n"
                if state["draining"]:
                    return
                await anyio.sleep(_EVERY)
        finally:
            self._streams -= 1


def preferred(accept: str) -> str:
    """What a client would most like of what there is; JSON unless it names something else."""
    best, wanted = 0.0, "application/json"
    for part in accept.lower().split(","):
        kind, _, parameters = part.partition(";")
        weight = _weight(parameters)
        if kind.strip() in ("text/html", "text/event-stream", "application/json") and weight > best:
            best, wanted = weight, kind.strip()
    return wanted


def _weight(parameters: str) -> float:
    name, _, value = parameters.strip().partition("=")
    if name != "q":
        return 1.0
    try:
        return float(value)
    except ValueError:
        return 0.0


def _sent_token(connection: HTTPConnection) -> bytes:
    """The bearer token, or the password of basic authentication (its user name may be anything)."""
    scheme, _, value = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode("latin-1")
    if scheme.lower() != "basic":
        return b""
    try:
        return base64.b64decode(value.strip(), validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return b""
