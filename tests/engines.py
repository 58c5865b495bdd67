"""Inference engines as a gate sees them: each speaks its own protocol, and works when the test says so."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route


class Engine:
    """What it was asked, and which answers were cut off. ``go`` holds answers back until it is set."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, str], bytes]] = []
        self.cut_off: list[str] = []
        self.breaks = False
        """Whether streams end in the middle."""
        self.go = threading.Event()
        self.go.set()

    def paths(self) -> list[str]:
        return [path for path, _, _ in self.asked]

    async def note(self, request: Request) -> Any:
        """The body as JSON, once the test lets it go on."""
        body = await request.body()
        where = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        self.asked.append((where, dict(request.headers), body))
        return json.loads(body or b"null")

    async def may_go(self, request: Request) -> None:
        try:
            while not self.go.is_set():
                if await request.is_disconnected():
                    raise anyio.BrokenResourceError
                await anyio.sleep(0.005)
        except BaseException:
            self.cut_off.append(request.url.path)
            raise

    def at_once(self, answer: Any) -> Callable[[Request], Awaitable[Response]]:
        """What steers an engine never waits."""

        async def endpoint(request: Request) -> Response:
            await self.note(request)
            return JSONResponse(answer)

        return endpoint

    def whole(self, answer: Callable[[Any], Any]) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            asked = await self.note(request)
            try:
                await self.may_go(request)
            except anyio.BrokenResourceError:
                return Response(status_code=499)
            return JSONResponse(answer(asked))

        return endpoint

    def streamed(
        self, media_type: str, first: bytes, rest: list[bytes]
    ) -> Callable[[Request], Awaitable[Response]]:
        """``first`` at once, and the others when the test lets them go."""

        async def endpoint(request: Request) -> Response:
            await self.note(request)

            async def parts() -> AsyncIterator[bytes]:
                yield first
                await self.may_go(request)
                if self.breaks:
                    raise RuntimeError("the engine has crashed")
                for part in rest:
                    yield part

            return StreamingResponse(parts(), media_type=media_type)

        return endpoint


def chunk(text: str) -> bytes:
    top = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "m"}
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return b"data: " + json.dumps({**top, "choices": [choice]}).encode() + b"\n\n"


def chat(asked: Any) -> Any:
    message = {"role": "assistant", "content": f"to {asked['messages'][-1]['content']}"}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    return {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}


def openai_routes(engine: Engine) -> list[Route]:
    stream = engine.streamed("text/event-stream", chunk("one "), [chunk("two"), b"data: [DONE]\n\n"])
    whole = engine.whole(chat)

    async def completions(request: Request) -> Response:
        return await (stream if (await request.json()).get("stream") else whole)(request)

    async def models(request: Request) -> Response:
        await engine.note(request)
        one = {"id": "m", "object": "model", "created": 0, "owned_by": "engine"}
        body = gzip.compress(json.dumps({"object": "list", "data": [one]}).encode())
        zipped = "gzip" in request.headers.get("accept-encoding", "")
        headers = {"content-encoding": "gzip", "content-type": "application/json"}
        return Response(body, headers=headers) if zipped else JSONResponse({"zipped": False})

    return [
        Route("/v1/chat/completions", completions, methods=["POST"]),
        Route("/v1/completions", engine.whole(lambda asked: {"choices": []}), methods=["POST"]),
        Route("/v1/models", models),
    ]


def said(text: str) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        return PlainTextResponse(text)

    return endpoint


VLLM_METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 0.0
# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="300"} 1.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="1",num_gpu_blocks="200"} 1.0
"""
VLLM_TOKENS = 16 * 500
SGLANG_METRICS = """\
# HELP sglang:max_total_num_tokens Maximum total number of tokens in the KV cache pool.
# TYPE sglang:max_total_num_tokens gauge
sglang:max_total_num_tokens{model_name="m",tp_rank="0"} 6000.0
sglang:max_total_num_tokens{model_name="m",tp_rank="1"} 6000.0
"""
SGLANG_TOKENS = 6000
LLAMACPP_TOKENS = 4096


def vllm(engine: Engine) -> Starlette:
    tokenize = engine.at_once({"count": 1, "tokens": [1]})
    own = [Route("/metrics", said(VLLM_METRICS)), Route("/tokenize", tokenize, methods=["POST"])]
    return Starlette(routes=[*own, *openai_routes(engine)])


def sglang(engine: Engine) -> Starlette:
    own = [
        Route("/metrics", said(SGLANG_METRICS)),
        Route("/generate", engine.whole(lambda asked: {"text": "made"}), methods=["POST"]),
        Route("/abort_request", engine.at_once({}), methods=["POST"]),
    ]
    return Starlette(routes=[*own, *openai_routes(engine)])


def llamacpp(engine: Engine) -> Starlette:
    async def props(request: Request) -> Response:
        settings = {"n_ctx": LLAMACPP_TOKENS, "params": {}}
        return JSONResponse({"default_generation_settings": settings, "total_slots": 4})

    own = [
        Route("/props", props),
        Route("/completion", engine.whole(lambda asked: {"content": "made"}), methods=["POST"]),
        Route("/slots/{slot}", engine.at_once({"n_erased": 1}), methods=["POST"]),
    ]
    return Starlette(routes=[*own, *openai_routes(engine)])


def lines(*values: Any) -> list[bytes]:
    return [json.dumps(value).encode() + b"\n" for value in values]


def ollama(engine: Engine) -> Starlette:
    def part(text: str, done: bool) -> Any:
        top = {"model": "m", "created_at": "2026-01-01T00:00:00Z", "done": done}
        return {**top, "message": {"role": "assistant", "content": text}, "response": text}

    first, *rest = lines(part("one ", False), part("two", True))
    stream = engine.streamed("application/x-ndjson", first, rest)
    whole = engine.whole(lambda asked: part("made", True))

    async def work(request: Request) -> Response:
        return await (whole if (await request.json()).get("stream") is False else stream)(request)

    pulled = engine.at_once({"status": "success"})
    own = [
        Route("/api/chat", work, methods=["POST"]),
        Route("/api/generate", work, methods=["POST"]),
        Route(
            "/api/show", engine.at_once({"details": {"family": "qwen3"}, "model_info": {}}), methods=["POST"]
        ),
        Route("/api/pull", pulled, methods=["POST"]),
        Route("/api/tags", engine.at_once({"models": []})),
    ]
    return Starlette(routes=own)
