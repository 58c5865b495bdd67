"""The load of the budget in the headers of each answer, for balancers that choose a server by it.

Used only where the setting ``load_header`` is on. What is told is in ``admission.load``.
"""

from __future__ import annotations

from collections.abc import Awaitable

from gpu_admission.admission.load import HEADER, LoadReport
from gpu_admission.types import Message, Send

_NAME = HEADER.encode()


def reported(load: LoadReport, send: Send) -> Send:
    """``send``, with the ORCA report in the answer's headers, in place of one that the app gives.

    A balancer that finds two reports uses neither.
    """

    def send_message(message: Message) -> Awaitable[None]:
        if message["type"] != "http.response.start":
            return send(message)
        others = [header for header in message.get("headers", ()) if header[0].lower() != _NAME]
        return send({**message, "headers": [*others, load_entry(load, message["status"])]})

    return send_message


def load_entry(load: LoadReport, status: int) -> tuple[bytes, bytes]:
    """The header of an answer with ``status``."""
    return _NAME, load.header(status).encode("ascii")
