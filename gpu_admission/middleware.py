"""The life of a request: taken in, run, and its bytes given back.

Nothing here reads bodies, decides or waits; each step is one call.
"""

from __future__ import annotations

from typing import Unpack

from gpu_admission.admission import Admission
from gpu_admission.admission.context import innermost
from gpu_admission.admission.rebuilt import rebuilds
from gpu_admission.errors import ClientLeft, Rejected
from gpu_admission.http import websocket
from gpu_admission.http.charge import AsksForNothing
from gpu_admission.http.inside import block_for, run_inside
from gpu_admission.http.intake import intake_of
from gpu_admission.http.lifespan import started_with
from gpu_admission.http.run import run
from gpu_admission.http.waiting import WhileWaiting, run_merged
from gpu_admission.rules.patterns import root_path_of
from gpu_admission.settings import Options
from gpu_admission.types import ASGIApp, Receive, Scope, Send


class GPUAdmission:
    """ASGI middleware: a metered request starts when its bytes fit, waits, or is refused.

    Give it an ``admission`` to share one budget between several doors, or the settings of a
    new one (see ``Settings``). If it is built again for the same app with the very same setting
    objects, as Starlette does after ``add_middleware``, it keeps the budget that it had.
    Raises ``TypeError``/``ValueError`` for wrong settings.
    """

    def __init__(
        self, app: ASGIApp, *, admission: Admission | None = None, **options: Unpack[Options]
    ) -> None:
        if admission is not None and options:
            names, given = ", ".join(options), ", ".join(f"{name}=..." for name in options)
            raise TypeError(
                f"give either admission= or settings, not both: {names}; write Admission({given}) instead"
            )
        if admission is not None and not isinstance(admission, Admission):
            raise TypeError(f"admission must be an Admission, not {type(admission).__name__}")
        self.app = app
        if admission is None:
            admission = rebuilds().admission(self, app, **options)
        self.admission = admission
        self._root_path = root_path_of(app)
        self._rule = admission.metering.rule
        self._is_off = admission.mode == "off"
        self._tells_waiting = bool(admission.settings.while_waiting)
        self._may_clamp = admission.settings.clamp_new_tokens and admission.mode == "enforce"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        admission = self.admission
        rule = self._rule(scope, self._root_path) if scope["type"] == "http" else None
        if rule is None or self._is_off:
            await self._pass(scope, receive, send)
            return
        intake = intake_of(admission, rule, scope, receive)
        waiting = WhileWaiting(intake, send) if self._tells_waiting else None
        is_inside = innermost() is not None and admission.entrance.held() is not None
        try:
            if is_inside:
                block = await block_for(intake)
            else:
                lease = await intake.lease(may_clamp=self._may_clamp)
        except Rejected as rejected:
            if waiting is not None and waiting.has_begun:
                await waiting.refuse(rejected)
                return
            await intake.answer(rejected)(scope, receive, send)
            return
        except AsksForNothing:
            await self.app(scope, intake.body, send)
            return
        except ClientLeft:
            return
        if is_inside:
            await run_inside(self.app, block, intake.body, scope, intake.body, send)
        elif waiting is not None and waiting.has_begun:
            await run_merged(self.app, intake, lease, scope, waiting)
        else:
            await run(self.app, intake, lease, scope, send)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Everything that is not metered as a request."""
        admission = self.admission
        if scope["type"] == "lifespan":
            send = started_with(admission, send)
        elif scope["type"] == "websocket" and admission.mode != "off":
            rule = admission.metering.connection(scope, self._root_path)
            if rule is not None:
                await websocket.serve(self.app, admission, rule, scope, receive, send)
                return
        await self.app(scope, receive, send)
