"""The server's startup and shutdown as they pass through: the capacity is measured in between.

The app's own startup runs first, so that its weights are loaded when the device is read.
"""

from __future__ import annotations

import logging

from gpu_admission.admission import Admission
from gpu_admission.errors import Unavailable
from gpu_admission.types import Message, Send

logger = logging.getLogger("gpu_admission")


def started_with(admission: Admission, send: Send) -> Send:
    """``send``, and before the app's ``startup.complete`` goes out, the start of ``admission``.

    What can't be measured stops the startup under ``strict=True``; else it is logged, and
    requests are refused until it can be.
    """

    if not admission.supervisor.is_needed:
        admission.start()
        return send

    async def send_message(message: Message) -> None:
        if message["type"] == "lifespan.startup.complete":
            try:
                await admission.begin()
            except (Unavailable, ValueError) as error:
                logger.error("gpu_admission %r: %s", admission.settings.name, error)
                if admission.settings.strict:
                    message = {"type": "lifespan.startup.failed", "message": f"gpu_admission: {error}"}
        elif message["type"].startswith("lifespan.shutdown"):
            await admission.aclose()
        await send(message)

    return send_message
