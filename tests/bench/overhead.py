"""What a middleware adds to one request, over a middleware that does nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slowapi import Limiter
from slowapi.middleware import SlowAPIASGIMiddleware
from slowapi.util import get_remote_address
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gpu_admission import GPUAdmission
from gpu_admission.estimators import Constant, Linear
from tests.bench.asgi import call, echo, scope_of, seconds
from tests.bench.sidebyside import medians, table

REQUESTS, ROUNDS = 500, 21


class Nothing:
    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


class NothingOnBase(BaseHTTPMiddleware):
    async def dispatch(self, request: Request, call_next: Any) -> Response:
        response: Response = await call_next(request)
        return response


async def endpoint(request: Request) -> Response:
    return Response()


def with_slowapi() -> tuple[ASGIApp, dict[str, Any]]:
    """slowapi looks its limits up by the route that matches, so it gets an app that has one."""
    app = Starlette(routes=[Route("/v1/chat/completions", endpoint, methods=["POST"])])
    app.state.limiter = Limiter(key_func=get_remote_address, default_limits=["1000000000/minute"])
    return SlowAPIASGIMiddleware(echo), {"app": app}


def requests(
    served: ASGIApp, path: str = "/v1/chat/completions", *, count: int = REQUESTS, **scope: Any
) -> Callable[[], float]:
    async def work() -> None:
        for _ in range(count):
            await call(served, scope_of(path, **scope))

    return lambda: seconds(work(), count)


def run() -> str:
    tokens = Linear({"prompt_tokens": "128KiB", "new_tokens": "128KiB"}, constant="40MiB")
    ours = GPUAdmission(echo, capacity="20GiB", estimator={"/v1/**": tokens})
    slowapi, slow_scope = with_slowapi()
    measured = medians(
        {
            "no-op ASGI middleware": requests(Nothing(echo)),
            "GPUAdmission, path not metered": requests(ours, "/other"),
            "GPUAdmission, Constant (no body read)": requests(
                GPUAdmission(echo, capacity="20GiB", estimator=Constant("1GiB"))
            ),
            "GPUAdmission, chat read and estimated": requests(ours),
            "slowapi (ASGI)": requests(slowapi, **slow_scope),
            "no-op BaseHTTPMiddleware": requests(NothingOnBase(echo)),
        },
        ROUNDS,
    )
    base = measured["no-op ASGI middleware"]
    chat = measured["GPUAdmission, chat read and estimated"] - base
    rows = [
        [name, f"{(value - base) * 1e6:.1f}", f"{(value - base) / chat:.2f}"]
        for name, value in measured.items()
    ]
    return table("Added to one 2 kB chat request", ["middleware", "µs added", "ours = 1"], rows)
