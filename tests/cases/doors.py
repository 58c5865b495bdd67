"""Apps whose one route is metered in one of the ways that there are."""

from __future__ import annotations

from collections.abc import AsyncIterator

from fastapi import Depends, FastAPI
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.requests import Request as StarletteRequest
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from gpu_admission import Admission, current_lease
from gpu_admission.types import ASGIApp
from tests.cases.harness import StreamedCost, settle

# BL-45: held until the last chunk


def streaming(kind: str, admission: Admission) -> ASGIApp:
    async def chunks_held() -> AsyncIterator[bytes]:
        for _ in range(5):
            await settle()
            lease = current_lease()
            yield b"%d," % (admission.snapshot().in_use if lease is not None else -1)

    if kind == "starlette":

        @admission.admit(estimator=StreamedCost())
        async def starlette_endpoint(request: StarletteRequest) -> Response:
            return StreamingResponse(chunks_held())

        return Starlette(routes=[Route("/work", starlette_endpoint, methods=["POST"])])
    app = FastAPI()
    if kind == "decorator":

        @app.post("/work")
        @admission.admit(estimator=StreamedCost())
        async def decorated() -> StreamingResponse:
            return StreamingResponse(chunks_held())

    if kind == "plain def":

        @app.post("/work")
        @admission.admit(estimator=StreamedCost())
        def decorated_def() -> StreamingResponse:
            return StreamingResponse(chunks_held())

    if kind == "dependency":

        @app.post("/work", dependencies=[Depends(admission.dependency(StreamedCost()))])
        async def depending() -> StreamingResponse:
            return StreamingResponse(chunks_held())

    return app


# BL-56: the endpoint looks and behaves as before


class Prompt(BaseModel):
    text: str
    max_tokens: int = 16


BODY = {"text": "hi"}
