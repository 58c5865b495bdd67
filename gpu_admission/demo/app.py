"""The app under test: one completion route in front of an engine, and what the engine used.

It is written as it would be in production, the same for every protection: it keeps its request's
lease, if there is one, until the engine has freed the memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gpu_admission import current_lease
from gpu_admission.demo.engine import DeviceMemoryError, Engine, Job, JobDroppedError
from gpu_admission.demo.tokenizer import ByteTokenizer
from gpu_admission.demo.trace import ENDS, PATH
from gpu_admission.demo.wall import Meter

CLIENT_LEFT = 499
"""Nobody reads it."""


def build_app(engine: Engine, meter: Meter, *, context: int) -> Starlette:
    """``POST /v1/completions`` on ``engine``; ``GET /stats`` of this process."""

    tokenizer = ByteTokenizer()

    async def complete(request: Request) -> Response:
        try:
            asked = await request.json()
        except ClientDisconnect:  # while it waited to get here
            return Response(status_code=CLIENT_LEFT)
        prompt = tokenizer.encode(asked["prompt"])
        if len(prompt) + asked["max_tokens"] > context:
            return _error(400, f"prompt and answer exceed the context of {context}", "context_length")
        return await _answer(request, engine.submit(prompt, _length(asked), _when_freed()))

    async def stats(request: Request) -> Response:
        since = float(request.query_params["since"])
        return JSONResponse([sample for sample in meter.samples if sample[0] >= since])

    return Starlette(routes=[Route(PATH, complete, methods=["POST"]), Route("/stats", stats)])


async def _answer(request: Request, job: Job) -> Response:
    watcher = asyncio.create_task(_cancel_when_gone(request, job))
    try:
        tokens = await asyncio.wrap_future(job.result)
    except DeviceMemoryError as error:
        return _error(500, str(error), "out_of_memory")
    except RuntimeError as error:
        return _error(500, str(error), "engine_failed")
    except JobDroppedError:
        return Response(status_code=CLIENT_LEFT)
    finally:
        job.cancel()
        watcher.cancel()
    return JSONResponse(_completion(job, tokens))


async def _cancel_when_gone(request: Request, job: Job) -> None:
    await request.receive()  # after the body there is only one message left: http.disconnect
    job.cancel()


def _length(asked: Mapping[str, int]) -> int:
    """Length of the answer: what is allowed, unless it ends earlier."""
    return min(asked["max_tokens"], asked.get(ENDS, asked["max_tokens"]))


def _when_freed() -> Callable[[], None]:
    """What the engine calls when it holds nothing for this request any more."""
    lease = current_lease()
    return lease.keep().close if lease else lambda: None


def _completion(job: Job, tokens: list[int]) -> dict[str, object]:
    return {
        "object": "text_completion",
        "model": "demo",
        "choices": [{"index": 0, "text": " ".join(map(str, tokens)), "finish_reason": "length"}],
        "usage": {"prompt_tokens": len(job.prompt), "completion_tokens": len(tokens)},
    }


def _error(status: int, message: str, code: str) -> Response:
    error = {"message": message, "type": "server_error" if status >= 500 else "invalid_request_error"}
    return JSONResponse({"error": error | {"code": code}}, status)
