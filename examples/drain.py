"""Shutting down without cutting an answer off: SIGTERM refuses new work and lets what runs end.

Run it:  uvicorn examples.drain:app
     or  gunicorn examples.drain:app -k uvicorn_worker.UvicornWorker --graceful-timeout 120
Try it:  curl -N -d '{"max_tokens": 100}' localhost:8000/stream, and stop the server meanwhile
"""

import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import FrameType

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Mount, Route

from gpu_admission import Admission, GPUAdmission
from gpu_admission.serving import Health

admission = Admission(capacity="2GiB", estimator="1GiB", timeout=60)


@contextmanager
def at_sigterm(call: Callable[[], object]) -> Iterator[None]:
    """Have ``call()`` first, then what the server does by itself: it closes its doors, and waits."""

    def handle(number: int, frame: FrameType | None) -> None:
        call()
        if callable(servers_own):
            servers_own(number, frame)

    servers_own = signal.signal(signal.SIGTERM, handle)
    yield
    signal.signal(signal.SIGTERM, servers_own)


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    with at_sigterm(admission.drain):  # those who wait hear 503 at once; /health/ready says no
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
