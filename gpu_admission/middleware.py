"""The life of a request: taken in, run, and its bytes given back.

Nothing here reads bodies, decides or waits; each step is one call.
"""

from __future__ import annotations

from typing import Unpack

from gpu_admission.admission import Admission
from gpu_admission.errors import ClientLeft, Rejected
from gpu_admission.http import websocket
from gpu_admission.http.intake import AsksForNothing, Intake
from gpu_admission.http.lifespan import started_with
from gpu_admission.http.respond import response_for
from gpu_admission.http.run import run, run_inside
from gpu_admission.rules.patterns import root_path_of
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
        self.admission = admission = Admission(**options) if admission is None else admission
        self._root_path = root_path_of(app)
        self._may_clamp = admission.settings.clamp_new_tokens and admission.mode == "enforce"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        admission = self.admission
        rule = admission.metering.rule(scope, self._root_path) if scope["type"] == "http" else None
        if rule is None or admission.mode == "off":
            if scope["type"] == "websocket" and admission.mode != "off":
                connection = admission.metering.connection(scope, self._root_path)
                if connection is not None:
                    await websocket.serve(self.app, admission, connection, scope, receive, send)
                    return
            if scope["type"] == "lifespan":
                send = started_with(admission, send)
            await self.app(scope, receive, send)
            return
        intake = Intake(admission, rule, scope, receive)
        try:
            if admission.entrance.held() is not None:
                await run_inside(self.app, await intake.block(), scope, intake.body, send)
                return
            lease = await intake.lease(may_clamp=self._may_clamp)
        except Rejected as rejected:
            await response_for(admission.settings.on_reject, intake.info, rejected)(scope, receive, send)
            return
        except AsksForNothing:
            await self.app(scope, intake.body, send)
            return
        except ClientLeft:
            return
        await run(self.app, intake, lease, scope, send)
