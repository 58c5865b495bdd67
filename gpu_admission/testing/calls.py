"""Requests made by hand: what a client sends, when it hangs up, and what it is answered.

No server, no socket and no clock: a call moves on when the test says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import anyio
import anyio.lowlevel

from gpu_admission import Lease, RequestInfo
from gpu_admission.types import ASGIApp, Message, Receive, Scope, Send

Header = tuple[bytes, bytes]
_KEYS = frozenset(
    (
        *("type", "asgi", "http_version", "server", "client", "scheme", "root_path", "method", "path"),
        *("raw_path", "query_string", "extensions", "state", "subprotocols", "app", "router", "route"),
        *("endpoint", "path_params", "user", "auth", "session"),
    )
)
"""Keys of a scope, in the ASGI specification and as Starlette and FastAPI set them."""


def cost(info: RequestInfo) -> int:
    """An estimator for tests: the body is read, and the header ``x-cost`` gives the charge."""
    return int(info.headers["x-cost"])


class StreamedCost:
    """``cost`` without reading the body: the app streams it itself."""

    needs_body = False

    def __call__(self, info: RequestInfo) -> int:
        return cost(info)


def http_scope(**changes: Any) -> Scope:
    """A hand-made ``http`` scope, as an ASGI 3 server makes it, with ``changes``."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "server": ("127.0.0.1", 8000),
        "client": ("127.0.0.1", 50000),
        "scheme": "http",
        "root_path": "",
        "method": "POST",
        "path": "/work",
        "query_string": b"",
        "headers": [],
    }
    return {**scope, **changes}


def chunks(*pieces: bytes, complete: bool = True) -> list[Message]:
    """A body as ``http.request`` messages, one for each piece; the last ends it, unless more is to come."""
    last = len(pieces) - 1
    return [
        {"type": "http.request", "body": piece, "more_body": not complete or number < last}
        for number, piece in enumerate(pieces)
    ]


class Call:
    """One request by hand: ``feed`` and ``hang_up`` are its client's, ``run`` is the server's part.

    ``cost`` goes into the header that the estimator ``cost`` reads. ``status``, ``headers``, ``body``
    and ``problem()`` are what came back; ``lease`` and ``read`` what the app behind saw, where it is
    ``working``. Further keywords are keys of its scope, such as ``path`` and ``method``; any other is
    a ``TypeError``.
    """

    def __init__(
        self,
        app: ASGIApp,
        *pieces: bytes,
        cost: int = 1,
        headers: Iterable[Header] = (),
        messages: Sequence[Message] | None = None,
        **scope: Any,
    ) -> None:
        unknown = sorted(name for name in scope.keys() - _KEYS if "." not in name)
        if unknown:
            raise TypeError(
                f"Call got {', '.join(map(repr, unknown))}, which is neither an argument of its own "
                f"nor a key of a scope; those are {', '.join(sorted(_KEYS))}"
            )
        self.app = app
        self.scope = http_scope(headers=[(b"x-cost", b"%d" % cost), *headers], call=self, **scope)
        self._coming = list(chunks(*(pieces or (b"",))) if messages is None else messages)
        self._said = list(self._coming)
        self._news = anyio.Event()
        self.hung_up = False
        self.receives = 0
        self.sent: list[Message] = []
        self.send_fails_at = -1
        self.error: BaseException | None = None
        self.cancelled = False
        self.done = anyio.Event()
        self.scope_of_cancel = anyio.CancelScope()
        self.started = anyio.Event()
        """The app behind has read the body."""
        self.may_finish = anyio.Event()
        self.read: bytes | None = None
        self.lease: Lease | None = None

    # the client's side

    def feed(self, *messages: Message) -> None:
        """Let more of the body arrive from the client."""
        self._coming += messages
        self._said += messages
        self._wake()

    def hang_up(self) -> None:
        self.hung_up = True
        self._wake()

    def _wake(self) -> None:
        news, self._news = self._news, anyio.Event()
        news.set()

    def finish(self) -> None:
        """Let the app finish its work."""
        self.may_finish.set()

    def cancel(self) -> None:
        self.scope_of_cancel.cancel()

    # the server's side

    async def receive(self) -> Message:
        self.receives += 1
        while not self._coming and not self.hung_up:
            await self._news.wait()
        return self._coming.pop(0) if self._coming else {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if len(self.sent) == self.send_fails_at:
            raise OSError("the connection is gone")
        self.sent.append(message)
        await anyio.lowlevel.checkpoint()

    async def run(self) -> None:
        """Call the app as a server does; what it raises is kept in ``error``."""
        try:
            with self.scope_of_cancel:
                try:
                    await self.app(self.scope, self.receive, self.send)
                except anyio.get_cancelled_exc_class():
                    self.cancelled = True
                    raise
        except Exception as error:
            self.error = error
        finally:
            self.done.set()

    # what came of it

    @property
    def starts(self) -> list[Message]:
        return [message for message in self.sent if message["type"] == "http.response.start"]

    @property
    def _start(self) -> Message:
        """The one start of an answer; where there is none, what ``error`` says of it comes along."""
        starts = self.starts
        if len(starts) == 1:
            return starts[0]
        if starts:
            raise AssertionError(f"{len(starts)} answers: {starts}")
        if self.error is not None:
            raise AssertionError(f"no answer: the app raised {self.error!r} (call.error)") from self.error
        raise AssertionError("no answer" if self.ended else "no answer yet: the call still runs")

    @property
    def status(self) -> int:
        status: int = self._start["status"]
        return status

    @property
    def headers(self) -> dict[str, str]:
        fields = self._start["headers"]
        pairs = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in fields]
        assert len(dict(pairs)) == len(pairs), "a header was sent twice"
        return dict(pairs)

    @property
    def body(self) -> bytes:
        return _bodies(self.sent)

    def problem(self) -> dict[str, Any]:
        """The refusal that it was answered with."""
        assert self.headers["content-type"] == "application/problem+json", self.headers
        assert self.headers["cache-control"] == "no-store"
        problem: dict[str, Any] = json.loads(self.body)
        assert problem["status"] == self.status
        assert problem["reason"] == self.headers["x-gpu-admission-reason"]
        return problem

    @property
    def ended(self) -> bool:
        return self.done.is_set()

    @property
    def reached_app(self) -> bool:
        return self.lease is not None

    def check(self) -> None:
        """Check that each client that stayed got one answer, and that the app got what was sent."""
        if not (self.hung_up or self.cancelled or self.error or self.send_fails_at >= 0):
            assert len(self.starts) == 1, f"{len(self.starts)} answers: {self.sent}"
        assert len(self.starts) <= 1
        if self.read is not None and not self.hung_up:
            assert self.read == _bodies(self._said)


def _bodies(messages: Iterable[Message]) -> bytes:
    return b"".join(message.get("body", b"") for message in messages)


async def read_body(receive: Receive) -> bytes:
    """The body, read by hand to its end."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            break
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


async def answer(send: Send, *pieces: bytes, status: int = 200) -> None:
    await send({"type": "http.response.start", "status": status, "headers": []})
    for piece in pieces:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
