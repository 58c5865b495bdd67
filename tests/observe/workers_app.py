"""An app for several workers: a request that is held until its client leaves, and one scrape of all.

Another is answered when the file ``$MAY_ANSWER`` is there.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Mount, Route

from gpu_admission import Admission, GPUAdmission
from gpu_admission.observe import Metrics, metrics_app

admission = Admission(
    capacity="10GiB", estimator={"/hold": "6GiB", "/answer": 1}, observers=[Metrics()], timeout=0
)


async def hold(request: Request) -> StreamingResponse:
    async def body() -> AsyncIterator[str]:
        yield f"{os.getpid()}\n"
        await anyio.sleep_forever()

    return StreamingResponse(body())


async def say(request: Request) -> PlainTextResponse:
    while not os.path.exists(os.environ["MAY_ANSWER"]):  # noqa: ASYNC110, ASYNC240
        await anyio.sleep(0.01)
    return PlainTextResponse(str(os.getpid()))


async def ready(request: Request) -> PlainTextResponse:
    return PlainTextResponse(str(os.getpid()))


app = Starlette(
    routes=[
        Route("/hold", hold, methods=["POST"]),
        Route("/answer", say, methods=["POST"]),
        Route("/ready", ready),
        Mount("/metrics", metrics_app(inference_gateway=True)),
    ]
)
app.add_middleware(GPUAdmission, admission=admission)
