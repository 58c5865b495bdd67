"""``Server-Timing``: how long an answered request waited in our queue, told to its own client.

Used only where the setting ``server_timing`` is on. Nothing about other requests is told.
"""

from __future__ import annotations

from collections.abc import Awaitable

from gpu_admission.admission.lease import Lease
from gpu_admission.types import Message, Send


def timed(lease: Lease, send: Send) -> Send:
    """``send``, with ``Server-Timing: gpu_queue;dur=…`` (milliseconds) added to the answer's headers.

    Metrics of the app's own stay: the header may come several times.
    """

    def send_message(message: Message) -> Awaitable[None]:
        if message["type"] != "http.response.start":
            return send(message)
        entry = (b"server-timing", b"gpu_queue;dur=%.1f" % (lease.waited * 1000))
        return send({**message, "headers": [*message.get("headers", ()), entry]})

    return send_message
