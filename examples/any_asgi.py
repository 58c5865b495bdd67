"""Around any ASGI app, without a framework: different routes, different prices.

Run it:  uvicorn examples.any_asgi:app
"""

import json
from typing import Any

from gpu_admission import GPUAdmission, RequestInfo


async def model(scope: Any, receive: Any, send: Any) -> None:
    """Any ASGI app: it gets the body as it came, and its own lease in the scope."""
    if scope["type"] != "http":
        return
    size = 0
    more = True
    while more:
        message = await receive()
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    lease = scope.get("gpu_admission.lease")
    answer = {"received": size, "held_bytes": lease.bytes if lease else 0}
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(answer).encode()})


def by_pixels(info: RequestInfo) -> int:
    """Bytes for the image that is asked for: 4 KiB a pixel."""
    return int(info.json.get("width", 1024)) * int(info.json.get("height", 1024)) * 4096


app = GPUAdmission(
    model,
    capacity="20GiB",
    estimator={"/images/**": by_pixels, "/embed": "300MiB"},
    fallback="4GiB",
)
