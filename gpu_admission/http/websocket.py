"""A WebSocket under a lease: asked for before it is accepted, held to its end, or refused.

Owns what differs from a request: there is no body to read, and other messages say the same
things. How its lease is obtained is in ``intake``.
"""

from __future__ import annotations

import functools
from typing import Any

from gpu_admission.admission import Admission
from gpu_admission.admission.context import enter
from gpu_admission.admission.lease import Lease
from gpu_admission.errors import ClientLeft, Rejected, UnreadableBody
from gpu_admission.http.body import Body
from gpu_admission.http.inside import block_for, run_inside
from gpu_admission.http.intake import Intake, intake_of
from gpu_admission.http.run import end
from gpu_admission.request import Estimator, RequestInfo
from gpu_admission.rules.metering import Rule
from gpu_admission.types import ASGIApp, Message, Receive, Scope, Send

TRY_AGAIN_LATER = 1013
_LONGEST_REASON = 123
"""Bytes that a close frame has for its reason (RFC 6455 5.5)."""


async def serve(
    app: ASGIApp, admission: Admission, rule: Rule, scope: Scope, receive: Receive, send: Send
) -> None:
    """Run ``app`` for a connection that ``rule`` meters, once its bytes are there."""
    handshake = {**scope, "type": "http", "method": "GET"}
    rule = Rule(rule.path, rule.route, _without_body(rule.estimator), rule.dialect)
    info = RequestInfo(handshake, path=rule.path)
    intake = intake_of(admission, rule, handshake, functools.partial(_receive, receive), info=info)
    try:
        is_inside = admission.entrance.held() is not None
        if is_inside:
            block = await block_for(intake)
        else:
            lease = await intake.lease()
    except Rejected as rejected:
        await _refuse(rejected, intake, scope, send)
        return
    except ClientLeft:
        return
    if is_inside:
        body = intake.body
        await run_inside(app, block, body, scope, functools.partial(_given, body), send)
    else:
        await _run(app, lease, intake.body, scope, send)


async def _run(app: ASGIApp, lease: Lease, body: Body, scope: Scope, send: Send) -> None:
    body.is_free = True  # a connection may be silent for as long as it likes
    try:
        enter(lease, scope)
        if lease.issuer.settings.hold == "response":
            send = _released_at_close(lease, send)
        await app(scope, functools.partial(_given, body), send)
    except BaseException as error:
        lease.finish(error)
        raise
    finally:
        end(lease, body, scope)


def _without_body(estimator: Estimator | None) -> Estimator | None:
    """``estimator``, for a request without a body: if it needs one, it fails and is charged as a failure."""
    if estimator is None or hasattr(estimator, "fixed"):
        return estimator

    def ask(info: RequestInfo) -> Any:
        try:
            if getattr(estimator, "waits", False):  # until connections end that may stay open for ever
                raise UnreadableBody("it is measured")
            return estimator(info)
        except UnreadableBody:
            raise LookupError("a WebSocket has no body: name an estimator that needs none") from None

    return ask


async def _receive(receive: Receive) -> Message:
    """The next message; a disconnect gets the name that ``Body`` knows."""
    message = await receive()
    if message["type"] == "websocket.disconnect":
        return {"type": "http.disconnect", "websocket": message}
    return message


async def _given(body: Body) -> Message:
    message = await body()
    original: Message = message.get("websocket", message)
    return original


def _released_at_close(lease: Lease, send: Send) -> Send:
    async def send_and_release(message: Message) -> None:
        await send(message)
        if message["type"] == "websocket.close":
            lease.release()

    return send_and_release


async def _refuse(rejected: Rejected, intake: Intake, scope: Scope, send: Send) -> None:
    """Answer the handshake like a request; where the server has no such extension, accept and close at once.

    Such a server turns a close before the accept into a 403, from which the client could not know
    that it may come again.
    """
    if "websocket.http.response" not in (scope.get("extensions") or {}):
        reason = rejected.detail.encode()[:_LONGEST_REASON].decode(errors="ignore")
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.close", "code": TRY_AGAIN_LATER, "reason": reason})
        return

    async def send_message(message: Message) -> None:
        await send({**message, "type": f"websocket.{message['type']}"})

    respond = intake.answer(rejected)
    await respond(intake.scope, intake.body, send_message)
