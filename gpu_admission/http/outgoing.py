"""A response on its way out: the ``send`` that the app gets.

Owns what is known of a response that has begun, when it is whole, how long a client may take to
receive a part of it, and that what the server starts while it sends is no part of the request. What
replaces a failed response is in ``rescue``; refusals are rendered in ``respond``.
"""

from __future__ import annotations

from collections.abc import Awaitable
from types import CoroutineType
from typing import Any

import msgspec

from gpu_admission.admission.context import innermost, step_in
from gpu_admission.admission.lease import Lease
from gpu_admission.errors import Rejected
from gpu_admission.http.answer import Answer
from gpu_admission.http.body import Body
from gpu_admission.http.clamp import told_of
from gpu_admission.http.intake import Intake
from gpu_admission.http.load import reported
from gpu_admission.http.timing import timed
from gpu_admission.runtime.timelimit import ENDED, NOT_BEGUN, rest
from gpu_admission.types import Message, Send

_BODY = "http.response.body"
_LAST = {_BODY, "http.response.zerocopysend", "http.response.pathsend"}


class Response(msgspec.Struct, eq=False):
    """What has gone through the ``send`` of one request.

    The last message is sent as if ``lease`` were not held: see ``outside``. Frameworks answer
    500 by themselves and then let the exception out: under ``oom_status`` such a response is
    kept until the app has returned, or another is sent in its place.
    """

    _lease: Lease
    _body: Body
    _send: Send
    is_whole: bool = False
    """The response is whole: nothing is left to be sent."""
    start: Message | None = None
    kept: list[Message] | None = None
    _trailers: bool = False
    _is_stalled: bool = False

    async def send(self, message: Message) -> None:
        """The app's ``send``."""
        is_last = False
        if message["type"] == "http.response.start":
            self._begin(message)
        elif not message.get("more_body", False):
            is_last = (not self._trailers and message["type"] == _BODY) or ends(message, self._trailers)
        if self.kept is not None:
            await self._keep(message)
            return
        if is_last:
            self.is_whole = self.start is not None
            inside = innermost()
            step_in(self._lease.outer)  # see ``context.outside``
        try:
            call = self._send(message)
            if type(call) is not CoroutineType or self._body.loop is None:
                await self._waited_for(call, NOT_BEGUN)
            elif (waits_for := next(call.__await__(), ENDED)) is not ENDED:
                await self._waited_for(call, waits_for)
        finally:
            if is_last:
                step_in(inside)

    @property
    def refusal(self) -> Rejected | None:
        """What to answer in place of the app's response, which has not begun."""
        return self._body.refusal if self.start is None else None

    def failed(self, error: Exception) -> None:
        """The app has raised ``error``: end its lease with the outcome that follows from it."""
        cause = "send_timeout" if self._is_stalled else self.refusal and self.refusal.reason
        if cause:
            # The client's own doing: it says nothing of the device.
            self._lease.outcome = ("client", cause)
        self._lease.finish(None if cause else error)

    async def send_past(self, message: Message) -> None:
        """Send what takes the place of the app's own response. Raises ``TimeoutError``."""
        await self._waited_for(self._send(message), NOT_BEGUN)

    async def _waited_for(self, call: Awaitable[None], waits_for: Any) -> None:
        limit = self._lease.issuer.settings.send_timeout
        try:
            await rest(call, waits_for, limit)
        except TimeoutError as error:
            self._is_stalled = True
            raise TimeoutError(f"the client took nothing for send_timeout={limit:g} s") from error

    def _begin(self, message: Message) -> None:
        if self._body.refusal is not None and self.start is None:
            raise self._body.refusal  # the app would answer for a body that it was refused: see ``rescue``
        self.start = message
        self._body.is_free = True
        if message.get("trailers"):
            self._trailers = True
        status = message["status"]
        if status < 400:
            return
        lease = self._lease
        if lease.outcome[0] == "ok":
            lease.outcome = ("client" if status < 500 else "error", f"HTTP {status}")
        if status == 500 and lease.issuer.settings.oom_status is not None:
            self.kept = []

    async def _keep(self, message: Message) -> None:
        assert self.kept is not None
        self.kept.append(message)
        if message.get("more_body", False):
            # Longer than an error page: the app's own stream.
            await self.let_go()

    async def let_go(self) -> None:
        """Send what was kept."""
        kept, self.kept = self.kept or (), None
        inside = innermost()
        step_in(self._lease.outer)
        try:
            for message in kept:
                await self.send_past(message)
        finally:
            step_in(inside)

    async def returned(self) -> None:
        """The app has returned without a whole response: as when a client leaves, nothing is learned from it.

        Raises the refusal that the app has swallowed, where it has answered nothing.
        """
        if self.refusal is not None:
            raise self.refusal
        if self._lease.outcome[0] == "ok":
            self._lease.outcome = ("client", "no answer")
        await self.let_go()


def ends(message: Message, trailers: bool) -> bool:
    """Whether a response is whole with ``message``; ``trailers``: they were announced."""
    kind = message["type"]
    if kind == "http.response.trailers":
        return not message.get("more_trailers", False)
    return kind in _LAST and not trailers and not message.get("more_body", False)


def shaped(intake: Intake, lease: Lease, send: Send) -> Send:
    """``send``, with what the settings add to a response."""
    settings = lease.issuer.settings
    if intake.rule.hears and lease.feedback is not None:
        # Innermost: what the answer says is known before a lease that ends with it has ended.
        lease.feedback.answer = send = Answer(send)
    if settings.server_timing:
        send = timed(lease, send)
    if settings.load_header:
        send = reported(intake.admission.load, send)
    if settings.hold == "response":
        send = released_at_end(lease, send)
    if intake.clamped_to is not None:
        send = told_of(intake.clamped_to, send)
    return send


def released_at_end(lease: Lease, send: Send) -> Send:
    """``send``, and the end of ``lease`` once the last part of the response is sent."""
    trailers = False

    async def send_and_release(message: Message) -> None:
        nonlocal trailers
        if message["type"] == "http.response.start":
            trailers = bool(message.get("trailers"))
        await send(message)
        if ends(message, trailers):
            lease.release()

    return send_and_release
