"""The apps that are compared: the same echo app, bare and behind each middleware.

Owns how each peer is put in front of an ASGI app, in its usual form: libraries that only offer a
limiter get the shortest middleware around it. What is measured is in the other modules.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

import anyio
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gpu_admission import GPUAdmission
from gpu_admission.estimators import Constant, Linear
from tests.bench.asgi import CHAT_PATH, echo

Wrapped: TypeAlias = "tuple[ASGIApp, dict[str, Any]]"
"""An app, and what its requests' scopes need besides the usual."""

PLENTY = 1_000_000_000
"""No limit that a benchmark reaches: what an admitted request costs is measured."""


class Nothing:
    """A middleware that does nothing, as pure ASGI."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


class NothingOnBase(BaseHTTPMiddleware):
    """The same on Starlette's ``BaseHTTPMiddleware``."""

    async def dispatch(self, request: Request, call_next: Any) -> Response:
        response: Response = await call_next(request)
        return response


class Within:
    """Each request inside ``async with`` a limiter."""

    def __init__(self, app: ASGIApp, limiter: AbstractAsyncContextManager[Any]) -> None:
        self.app = app
        self.limiter = limiter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self.limiter:
            await self.app(scope, receive, send)


class Limits:
    """The shortest middleware around ``limits``: one hit for each request, by client address."""

    def __init__(self, app: ASGIApp) -> None:
        limits = importlib.import_module("limits.aio")
        self.app = app
        self.limiter = limits.strategies.FixedWindowRateLimiter(limits.storage.MemoryStorage())
        self.item = importlib.import_module("limits").RateLimitItemPerMinute(PLENTY)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not await self.limiter.hit(self.item, scope["client"][0]):
            await PlainTextResponse("too many", 429)(scope, receive, send)
            return
        await self.app(scope, receive, send)


def tokens() -> dict[str, Linear]:
    """An estimator that reads the chat body."""
    return {"/v1/**": Linear({"prompt_tokens": "128KiB", "new_tokens": "128KiB"}, constant="40MiB")}


def ours(app: ASGIApp = echo) -> Wrapped:
    """The chat body read, estimated, and its bytes held."""
    return GPUAdmission(app, capacity="20GiB", estimator=tokens()), {}


def ours_constant() -> Wrapped:
    return GPUAdmission(echo, capacity="20GiB", estimator=Constant("1GiB")), {}


def slowapi(behind: ASGIApp = echo) -> Wrapped:
    """slowapi looks its limits up by the route that matches, so it gets an app that has one."""

    async def endpoint(request: Request) -> Response:
        return Response()

    package = importlib.import_module("slowapi")
    by_address = importlib.import_module("slowapi.util").get_remote_address
    app = Starlette(routes=[Route(CHAT_PATH, endpoint, methods=["POST"])])
    app.state.limiter = package.Limiter(key_func=by_address, default_limits=[f"{PLENTY}/minute"])
    return importlib.import_module("slowapi.middleware").SlowAPIASGIMiddleware(behind), {"app": app}


def aiolimiter() -> Wrapped:
    return Within(echo, importlib.import_module("aiolimiter").AsyncLimiter(PLENTY, 60)), {}


def balancer() -> Wrapped:
    """fastapi-balancer's middleware, with the capacity given instead of probed."""
    package = "fastapi_balancer"
    storage = importlib.import_module(f"{package}.storage.memory").MemoryStorage()
    asyncio.run(storage.set_capacity(CHAT_PATH, PLENTY))
    app = importlib.import_module(f"{package}.middleware").BalancerMiddleware(
        echo,
        watched_endpoints=[CHAT_PATH],
        backends=[],
        router=importlib.import_module(f"{package}.router").RoundRobinRouter(),
        limiter=importlib.import_module(f"{package}.limiter").Limiter(storage),
        storage=storage,
        queue_timeout=30.0,
    )
    return app, {}


BARE = "bare app"
NOTHING = "no-op ASGI middleware"
CONSTANT = "GPUAdmission, Constant (no body read)"
CHAT_READ = "GPUAdmission, chat read and estimated"
SLOWAPI = "slowapi (ASGI)"
ON_BASE = "no-op BaseHTTPMiddleware"

CONTENDERS: dict[str, Callable[[], Wrapped]] = {
    BARE: lambda: (echo, {}),
    NOTHING: lambda: (Nothing(echo), {}),
    CONSTANT: ours_constant,
    CHAT_READ: ours,
    "asyncio.Semaphore": lambda: (Within(echo, asyncio.Semaphore(1000)), {}),
    "anyio.CapacityLimiter": lambda: (Within(echo, anyio.CapacityLimiter(1000)), {}),
    "aiolimiter": aiolimiter,
    "limits": lambda: (Limits(echo), {}),
    SLOWAPI: slowapi,
    ON_BASE: lambda: (NothingOnBase(echo), {}),
    "fastapi-balancer": balancer,
}
"""Each by the name that a table gives it."""
