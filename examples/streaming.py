"""Server-sent events: the bytes are held until the last event, and as long as the engine needs.

Run it:  uvicorn examples.streaming:app
"""

from collections.abc import AsyncIterator

import anyio.lowlevel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from gpu_admission import GPUAdmission, Lease, current_lease
from gpu_admission.estimators import Constant


async def engine(tokens: int, lease: Lease | None) -> AsyncIterator[str]:
    """A stand-in for an engine that frees its cache when its own loop gets to it."""
    handle = lease.keep() if lease else None
    try:
        for number in range(tokens):
            await anyio.lowlevel.checkpoint()
            yield f"token-{number}"
    finally:
        # Also reached when the client hangs up; only now are the bytes free for others.
        if handle:
            handle.close()


async def chat(request: Request) -> StreamingResponse:
    tokens = int((await request.json()).get("max_tokens", 8))

    async def events() -> AsyncIterator[str]:
        async for token in engine(tokens, current_lease()):
            yield f"data: {token}\n\n"
        yield "data: [DONE]\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


app = Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])
app.add_middleware(GPUAdmission, capacity="4GiB", estimator=Constant("1GiB"), on_reject="openai")
