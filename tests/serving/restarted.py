"""An app for several workers on one socket that share one budget, in the folder ``$SHARED``."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from gpu_admission import Admission, GPUAdmission
from gpu_admission.serving import Health, drain_at_sigterm
from gpu_admission.types import ASGIApp, Message, Receive, Scope, Send

admission = Admission(capacity=4, estimator=1, shared=os.environ["SHARED"], max_waiting=500, timeout=600)


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    with drain_at_sigterm(admission):
        yield
    await admission.aclose()


async def work(request: Request) -> PlainTextResponse:
    await anyio.sleep(0.2)
    return PlainTextResponse(str(os.getpid()))


class Noted:
    """Notes each request that the server passes on, and how it was answered, in ``$NOTES``."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._notes = os.open(os.environ["NOTES"], os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                os.write(self._notes, f"{message['status']}\n".encode())
            await send(message)

        if scope.get("path") != "/work":
            await self._app(scope, receive, send)
            return
        os.write(self._notes, b"taken\n")
        await self._app(scope, receive, noting)


routes = [Route("/work", work, methods=["POST"]), Mount("/health", Health(admission))]
app = Starlette(routes=routes, lifespan=lifespan)
app.add_middleware(GPUAdmission, admission=admission)
app.add_middleware(Noted)
