"""Keeps a streaming client alive while its request waits: the event stream begins early, with comments.

Owns what is sent before the decision, and how what follows fits into a stream that has begun: the
app's own stream, some other answer from the app, or a refusal. Nothing here decides or measures.
"""

from __future__ import annotations

import contextlib
import json
import logging
from typing import Any

import anyio

from gpu_admission.admission.lease import Lease
from gpu_admission.admission.load import HEADER
from gpu_admission.bodies.large import SMALL_BYTES
from gpu_admission.budget.ticket import Ticket
from gpu_admission.errors import Rejected
from gpu_admission.http.headers import of_the_body
from gpu_admission.http.intake import Intake
from gpu_admission.http.load import load_entry
from gpu_admission.http.run import run
from gpu_admission.types import ASGIApp, Message, Scope, Send

logger = logging.getLogger("gpu_admission")
FIRST_SECONDS = 3.0
"""Requests that wait no longer than this are answered as usual, status and headers included."""
EVERY_SECONDS = 10.0
MOST_COUNTED = 1000
"""With more than this waiting, comments name no place in the queue: finding one takes a look at each."""
SEND_SECONDS = 5.0
"""A client that accepts no comment for this many seconds has left: nothing else may wait for it."""
LONGEST_ANSWER = 64 * 1024
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_EXPECTED = {b"connection", b"content-length", b"date", b"server", b"transfer-encoding", HEADER.encode()}


class WhileWaiting:
    """The ``send`` of one request under ``while_waiting="sse"``."""

    has_begun = False
    """The response has begun: what comes next is part of its stream."""
    _ticket: Ticket | None = None
    _start: Message | None = None
    _answer: bytes | None = None
    """The answer so far of an app that answers with something other than an event stream."""
    _ended = False

    def __init__(self, intake: Intake, send: Send) -> None:
        self._intake = intake
        self._send = send
        intake.watch, intake.queued = self.watch, self.queued

    # while it waits

    def queued(self, ticket: Ticket) -> None:
        """It waits as ``ticket``."""
        self._ticket = ticket

    async def watch(self) -> None:
        """Return when the client has left, as ``Body.watch``."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._keep_alive, group.cancel_scope)
            await self._intake.body.watch()
            group.cancel_scope.cancel()

    async def _keep_alive(self, left: anyio.CancelScope) -> None:
        await anyio.sleep(FIRST_SECONDS)
        while not self._is_streaming():
            if self._intake.body.complete:
                return
            await anyio.sleep(FIRST_SECONDS)  # its body is still on the way
        try:
            await self._say({"type": "http.response.start", "status": 200, "headers": self._headers()})
            while True:
                await self._say({"type": "http.response.body", "body": self._comment(), "more_body": True})
                await anyio.sleep(EVERY_SECONDS)
        except Exception as error:
            logger.info("a client that waits can't be kept alive: %s", type(error).__name__)
            left.cancel()

    def _headers(self) -> list[tuple[bytes, bytes]]:
        admission = self._intake.admission
        return [*_HEADERS, load_entry(admission.load, 200)] if admission.settings.load_header else _HEADERS

    async def _say(self, message: Message) -> None:
        """Whole, even if the wait ends meanwhile: half a comment would spoil the stream."""
        self.has_begun = True
        with anyio.fail_after(SEND_SECONDS, shield=True):
            await self._send(message)

    def _is_streaming(self) -> bool:
        """Whether the client asked for an event stream, and its API has errors for one."""
        info = self._intake.info
        if self._error("", "").startswith(b"{"):
            return False
        if "text/event-stream" in info.headers.get("accept", ""):
            return True
        known = info.known_workload or self._read()
        return bool(known is not None and known.stream)

    def _read(self) -> Any:
        """What a short body asks for, where no estimator has read it."""
        body, info = self._intake.body, self._intake.info
        if not body.complete or body.size > SMALL_BYTES or of_the_body(self._intake.scope)[1]:
            return None
        try:
            info.read_from(body.content)
            return info.workload
        except Exception:
            return None
        finally:
            info.forget()

    def _comment(self) -> bytes:
        entrance = self._intake.admission.entrance
        if self._ticket is None or self._intake.admission.waiting > MOST_COUNTED:
            return b": waiting\n\n"
        place = entrance.place(self._ticket)
        if place is None:
            return b": starting\n\n"
        about = "" if place.forecast is None else f", about {place.forecast:.0f} s"
        return f": waiting, place {place.number} of {place.of}{about}\n\n".encode()

    # what follows

    async def refuse(self, rejected: Rejected) -> None:
        """Say why, as the last event of the stream that has begun."""
        self._intake.forget(rejected)
        await self._end(self._error(rejected.detail, rejected.reason))

    async def failed(self) -> None:
        """The app has raised before it answered: the client must not mistake the end for a whole stream."""
        if self._start is None and not self._ended:
            with contextlib.suppress(Exception):
                await self._end(self._error("the server failed", "internal_error"))

    async def __call__(self, message: Message) -> None:
        """The app's ``send``, into the stream that has begun."""
        kind = message["type"]
        if kind == "http.response.start":
            self._merge(message)
        elif kind != "http.response.body" or self._ended:
            return
        elif self._answer is None:
            self._ended = not message.get("more_body", False)
            await self._send(message)
        else:
            self._answer = (self._answer + message.get("body", b""))[: LONGEST_ANSWER + 1]
            if not message.get("more_body", False):
                await self._end(self._as_event(self._answer))

    def _merge(self, start: Message) -> None:
        self._start = start
        headers = {name.lower(): value for name, value in start.get("headers", ())}
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        is_stream = kind == b"text/event-stream" and b"content-encoding" not in headers
        if start["status"] >= 300 or not is_stream:
            self._answer = b""
        lost = sorted(headers.keys() - _EXPECTED - {name for name, _ in _HEADERS})
        if lost:
            names = b", ".join(lost[:20]).decode("latin-1")
            logger.warning("while_waiting: the stream had begun, these headers were not sent: %s", names)

    def _as_event(self, answer: bytes) -> bytes:
        """An answer that is no stream: its data as one event, an error as the API's own."""
        assert self._start is not None
        status = self._start["status"]
        if status < 300 and len(answer) <= LONGEST_ANSWER:
            return b"".join(b"data: %s\n" % line for line in answer.splitlines()) + b"\n"
        return self._error(_message_of(answer) or f"the app answered with status {status}", f"http_{status}")

    def _error(self, message: str, code: str) -> bytes:
        event: bytes = self._intake.info.dialect.sse_error(message, code)
        return event

    async def _end(self, event: bytes) -> None:
        self._ended = True
        await self._send({"type": "http.response.body", "body": event, "more_body": False})


async def run_merged(app: ASGIApp, intake: Intake, lease: Lease, scope: Scope, waiting: WhileWaiting) -> None:
    """``run`` for a client whose stream has begun already."""
    try:
        await run(app, intake, lease, scope, waiting)
    except Exception:
        await waiting.failed()
        raise


def _message_of(answer: bytes) -> str:
    """The sentence of an error body of the usual forms; empty where there is none."""
    try:
        found = json.loads(answer)
        found = found.get("error", found)
        said = found if isinstance(found, str) else found.get("message") or found.get("detail")
    except (ValueError, AttributeError, RecursionError):
        return ""
    return said if isinstance(said, str) else ""
