"""What takes the place of a response whose app ran out of memory, or was refused the rest of its body.

The app's exception stays as it is: answers here are sent before it propagates, or in its place.
What is known of the response so far is in ``outgoing``.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable

from gpu_admission.errors import Rejected
from gpu_admission.http.intake import Intake
from gpu_admission.http.outgoing import Response
from gpu_admission.types import Scope

logger = logging.getLogger("gpu_admission")
_MESSAGE = "the device ran out of memory"


async def rescue(error: Exception, response: Response, intake: Intake, scope: Scope) -> bool:
    """Whether the client was answered in place of the app, which has raised ``error``."""
    admission = intake.admission
    settings = admission.settings
    if response.refusal is not None:
        return await _refuse(response.refusal, response, intake, scope)
    asked = settings.oom_event or settings.oom_status is not None
    if not asked or admission.endings.classify(error)[0] != "oom":
        await _try(response.let_go())
        return False
    if response.start is None or response.kept is not None:
        status = settings.oom_status
        if status is None:
            return False
        rejected = admission.endings.out_of_memory(status)
        return await _replace(rejected, response, intake, scope)
    event = _last_event(response, intake) if settings.oom_event else b""
    if event:
        await _try(response.send_past({"type": "http.response.body", "body": event, "more_body": False}))
    return False


async def _refuse(refusal: Rejected, response: Response, intake: Intake, scope: Scope) -> bool:
    """Answer for a body that the app read by itself, and that passed a limit on the way."""
    intake.refuse(refusal)
    return await _replace(refusal, response, intake, scope)


async def _replace(rejected: Rejected, response: Response, intake: Intake, scope: Scope) -> bool:
    return await _try(intake.answer(rejected)(scope, intake.body, response.send_past))


def _last_event(response: Response, intake: Intake) -> bytes:
    """The dialect's error event, if it fits the stream that was cut short; else empty."""
    assert response.start is not None
    headers = dict(response.start.get("headers", ()))
    if response.is_whole or b"content-encoding" in headers:
        return b""
    event = intake.info.dialect.sse_error(_MESSAGE, "out_of_memory")
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind == b"application/x-ndjson":
        return event if event.startswith(b"{") else b""
    return event if kind == b"text/event-stream" and not event.startswith(b"{") else b""


async def _try(sending: Awaitable[None]) -> bool:
    """Whether it was sent: a client that has gone must not hide the app's exception."""
    try:
        await sending
    except Exception as error:
        logger.info("the answer after a failure could not be sent: %s", type(error).__name__)
        return False
    return True
