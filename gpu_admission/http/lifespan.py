"""The server's startup and shutdown as they pass through: the capacity is measured in between.

The app's own startup runs first, so that its weights are loaded when the device is read. A
shutdown stops what runs in the background, has observers count what they were told, leaves a shared
budget, and drains nothing: by then no request is left, and the same app may be started again.
"""

from __future__ import annotations

import logging

from gpu_admission.admission import Admission
from gpu_admission.types import Message, Send

logger = logging.getLogger("gpu_admission")


def started_with(admission: Admission, send: Send) -> Send:
    """``send``, and before the app's ``startup.complete`` goes out, the start of ``admission``.

    Under ``strict=True``, settings that can't be served stop the startup: the server is told why, and
    the app's own lifespan is ended by the same ``ValueError``, raised where it reported its startup.
    """
    waits = admission.monitor.is_needed or not admission.locked.is_joined
    if not waits and not admission.events.flushing:
        admission.startup.start()
        return send
    return _Starting(admission, send)


class _Starting:
    """The ``send`` of one lifespan."""

    def __init__(self, admission: Admission, send: Send) -> None:
        self._admission = admission
        self._send = send
        self._failed = False

    async def __call__(self, message: Message) -> None:
        if self._failed:
            return  # the app's own report of being ended: the server has already heard the reason
        if message["type"] == "lifespan.startup.complete":
            await self._begin()
        elif message["type"].startswith("lifespan.shutdown"):
            self._admission.startup.stop()
            await self._admission.events.flush()
            await self._admission.locked.rest()
        await self._send(message)

    async def _begin(self) -> None:
        admission = self._admission
        try:
            await admission.startup.begin()
        except ValueError as error:
            logger.error("gpu_admission %r does not start: %s", admission.settings.name, error)
            # A server that goes on by itself when an app fails (uvicorn's lifespan="auto") stops for
            # this; and one that waits for the app to end (a test client) sees it end.
            await self._send({"type": "lifespan.startup.failed", "message": f"gpu_admission: {error}"})
            self._failed = True
            raise
