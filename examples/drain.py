"""Shutting down without cutting an answer off: SIGTERM lets what runs and what waits end.

Run it:  uvicorn examples.drain:app
     or  gunicorn examples.drain:app -k uvicorn_worker.UvicornWorker --graceful-timeout 120
Try it:  curl -N -d '{"max_tokens": 100}' localhost:8000/stream, and stop the server meanwhile
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Mount, Route

from gpu_admission import Admission, GPUAdmission
from gpu_admission.serving import Health, drain_at_sigterm

admission = Admission(capacity="2GiB", estimator="1GiB", timeout=60)


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    with drain_at_sigterm(admission):  # /health/ready says no; what runs and what waits is served
        yield
    await admission.aclose()


async def stream(request: Request) -> StreamingResponse:
    tokens = int((await request.json()).get("max_tokens", 8))

    async def words() -> AsyncIterator[str]:
        for number in range(tokens):
            await anyio.sleep(0.1)  # your model
            yield f"token-{number}\n"

    return StreamingResponse(words(), media_type="text/plain")


routes = [Route("/stream", stream, methods=["POST"]), Mount("/health", Health(admission))]
app = Starlette(routes=routes, lifespan=lifespan)
app.add_middleware(GPUAdmission, admission=admission)
