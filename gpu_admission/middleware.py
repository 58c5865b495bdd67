"""The life of a request: taken in, run, and its bytes given back.

Nothing here reads bodies, decides or waits; each step is one call.
"""

from __future__ import annotations

from typing import Unpack

from gpu_admission.admission import Admission
from gpu_admission.admission.context import enter, leave
from gpu_admission.admission.lease import Lease
from gpu_admission.errors import ClientLeft, Rejected
from gpu_admission.http.answer import released_at_end
from gpu_admission.http.clamp import told_of
from gpu_admission.http.intake import Intake
from gpu_admission.http.lifespan import started_with
from gpu_admission.http.rescue import Answer
from gpu_admission.http.respond import response_for
from gpu_admission.http.timing import timed
from gpu_admission.settings import Options
from gpu_admission.types import ASGIApp, Receive, Scope, Send


class GPUAdmission:
    """ASGI middleware: a metered request starts when its bytes fit, waits, or is refused.

    Give it an ``admission`` to share one budget between several doors, or the settings of a
    new one (see ``Settings``). Raises ``TypeError``/``ValueError`` for wrong settings.
    """

    def __init__(
        self, app: ASGIApp, *, admission: Admission | None = None, **options: Unpack[Options]
    ) -> None:
        if admission is not None and options:
            raise TypeError(f"give either admission= or settings, not both: {', '.join(options)}")
        if admission is not None and not isinstance(admission, Admission):
            raise TypeError(f"admission must be an Admission, not {type(admission).__name__}")
        self.app = app
        self.admission = Admission(**options) if admission is None else admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        admission = self.admission
        rule = admission.metering.rule(scope) if scope["type"] == "http" else None
        if rule is None or admission.mode == "off" or admission.entrance.held() is not None:
            if scope["type"] == "lifespan":
                send = started_with(admission, send)
            await self.app(scope, receive, send)
            return
        intake = Intake(admission, rule, scope, receive)
        intake.may_clamp = admission.settings.clamp_new_tokens and admission.mode == "enforce"
        try:
            lease = await intake.lease()
        except Rejected as rejected:
            await response_for(admission.settings.on_reject, intake.info, rejected)(scope, receive, send)
            return
        except ClientLeft:
            return
        intake.body.lease = lease
        answer = Answer(lease, send)
        try:
            enter(lease, scope)
            await self.app(scope, intake.body, self._send(intake, lease, answer))
            if not answer.is_whole:
                await answer.returned()
        except Exception as error:
            lease.finish(error)
            if not await answer.rescue(error, intake.info, scope, receive):
                raise
        except BaseException as error:
            lease.finish(error)
            raise
        finally:
            lease.finish(None)
            leave(lease, scope)
            intake.body.close()

    def _send(self, intake: Intake, lease: Lease, send: Send) -> Send:
        """The ``send`` that the app gets."""
        settings = self.admission.settings
        if settings.server_timing:
            send = timed(lease, send)
        if settings.hold == "response":
            send = released_at_end(lease, send)
        if intake.clamped_to is not None:
            send = told_of(intake.clamped_to, send)
        return send
