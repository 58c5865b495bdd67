"""The server's startup and shutdown as they pass through: the capacity is measured in between.

The app's own startup runs first, so that its weights are loaded when the device is read. A
shutdown stops what runs in the background, and drains nothing: by then no request is left,
and the same app may be started again.
"""

from __future__ import annotations

import logging

from gpu_admission.admission import Admission
from gpu_admission.types import Message, Send

logger = logging.getLogger("gpu_admission")


def started_with(admission: Admission, send: Send) -> Send:
    """``send``, and before the app's ``startup.complete`` goes out, the start of ``admission``.

    What can't be served stops the startup under ``strict=True``; else it is logged, and
    requests are refused until it can be.
    """
    if not admission.monitor.is_needed and admission.locked.is_joined:
        admission.startup.start()
        return send

    async def send_message(message: Message) -> None:
        if message["type"] == "lifespan.startup.complete":
            try:
                await admission.begin()
            except ValueError as error:
                logger.error("gpu_admission %r does not start: %s", admission.settings.name, error)
                admission.startup.stop()
                message = {"type": "lifespan.startup.failed", "message": f"gpu_admission: {error}"}
        elif message["type"].startswith("lifespan.shutdown"):
            admission.startup.stop()
        await send(message)

    return send_message
