"""The app's answer on its way out: the ``send`` that the app gets.

Owns when a lease ends with its answer, and that what the server starts while it sends is
no part of the request. Messages pass as they are; refusals are in ``respond``.
"""

from __future__ import annotations

from gpu_admission.admission.lease import Lease
from gpu_admission.types import Message, Send


def released_at_end(lease: Lease, send: Send) -> Send:
    """``send``, and the end of ``lease`` once the last chunk of the body is sent."""

    async def send_and_release(message: Message) -> None:
        await send(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            lease.release()

    return send_and_release
