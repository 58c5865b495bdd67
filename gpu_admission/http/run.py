"""An app run under a lease: entered, run, rescued where that was asked for, and always ended.

The one place where a request's lease ends, whichever door it came through. How a lease is obtained
is in ``intake``, and what happens to a response on its way out in ``outgoing``.
"""

from __future__ import annotations

from gpu_admission.admission.context import enter, leave
from gpu_admission.admission.lease import Lease
from gpu_admission.http.body import Body
from gpu_admission.http.intake import Intake
from gpu_admission.http.outgoing import Response, shaped
from gpu_admission.http.rescue import rescue
from gpu_admission.types import ASGIApp, Scope, Send


async def run(app: ASGIApp, intake: Intake, lease: Lease, scope: Scope, send: Send) -> None:
    """Run ``app`` under ``lease``. What it raises comes out as the same object, unless it was rescued."""
    body = intake.body
    response = Response(lease, body, send)
    try:
        enter(lease, scope, body.loop)
        is_shaped = intake.admission.shapes_responses or intake.rule.hears or intake.clamped_to is not None
        await app(scope, body, shaped(intake, lease, response.send) if is_shaped else response.send)
        if not response.is_whole:
            await response.returned()
    except Exception as error:
        # Before anything is sent in its place: the client's pace must not hold the bytes.
        response.failed(error)
        if not await rescue(error, response, intake, scope):
            raise
    except BaseException as error:
        lease.finish(error)
        raise
    finally:
        end(lease, body, scope)


def end(lease: Lease, body: Body, scope: Scope) -> None:
    """End ``lease``, unless an error has already ended it; nothing of the request is left behind."""
    lease.finish(None)
    leave(lease, scope)
    if body.ahead is not None:
        body.close()
