"""A gate in front of an engine that has a KV pool of its own: what does not fit the pool waits here.

Run it:  KIND=vllm ENGINE=http://localhost:8000 uvicorn examples.gate:app --port 9000
     or  KIND=ollama ENGINE=http://localhost:11434 POOL_TOKENS=32768 uvicorn examples.gate:app --port 9000
Try it:  OLLAMA_HOST=localhost:9000 ollama run qwen3, or any OpenAI client with base_url http://localhost:9000/v1
See it:  localhost:9000/gate/status/ and /gate/metrics/; all other paths are the engine's own
"""

import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from urllib.parse import quote

import anyio
import httpx
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send

from gpu_admission import Admission, GPUAdmission, Rejected, RequestInfo, Workload
from gpu_admission.estimators import Linear
from gpu_admission.observe import Metrics, local_only, metrics_app, status_app
from gpu_admission.serving import Health, drain_at_sigterm

KIND = os.environ.get("KIND", "vllm")  # or sglang, llamacpp, ollama
ENGINE = os.environ.get("ENGINE", "http://localhost:8000")
# The pool, where the engine shall not be asked or does not tell: Ollama's context length x parallel requests.
POOL_TOKENS = os.environ.get("POOL_TOKENS")
DIALECTS: dict[str, dict[str, str]] = {  # where the path alone does not say it all
    "vllm": {"/v1/completions": "vllm", "/v1/chat/completions": "vllm"},
    "sglang": {"/generate": "sglang"},
}
ONE_HOP = {b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"te", b"trailer", b"host"}
SERVERS_OWN = {b"date", b"server"}
LOOK_EVERY = 10.0  # seconds
MARGIN = 0.05  # of the pool, for what estimates miss

# What a token takes in the pool. Only its share of the pool counts, so any size will do; windows and
# other layouts have exact ones: KVCache.from_config("config.json", accounting="vllm").
in_pool = Linear({"total_prompt_tokens": "128KiB", "new_tokens*sequences": "128KiB"})


def refuse(info: RequestInfo, rejected: Rejected) -> JSONResponse:
    """A refusal as Ollama's clients read it."""
    return JSONResponse({"error": rejected.detail}, rejected.status, headers=rejected.headers)


def size(tokens: int) -> int:
    return in_pool.estimate(Workload(prompt_tokens=tokens)).bytes


admission = Admission.from_env(  # timeout, max_waiting, mode and shared from GPU_ADMISSION_*
    name="gate",
    capacity=size(int(POOL_TOKENS or 32768)),
    margin=MARGIN,
    estimator=in_pool,
    dialect=DIALECTS.get(KIND),
    control=["/api/pull", "/api/push", "/api/create", "/api/blobs/*"],
    on_reject=refuse if KIND == "ollama" else "openai",
    observers=[Metrics()],
)
engine = httpx.AsyncClient(
    base_url=ENGINE,
    timeout=httpx.Timeout(None, connect=5),
    limits=httpx.Limits(max_connections=None),  # the budget decides who waits, not a pool of connections
    trust_env=False,
)
AWAY = JSONResponse(
    {"error": {"message": "the engine can't be reached", "code": "engine_unreachable"}},
    502,
    {"Retry-After": "5"},
)


async def pool_tokens() -> int:
    """Tokens that the engine's pool holds; 0 where it does not tell."""
    if KIND == "llamacpp":  # of a unified cache; with --no-kv-unified set POOL_TOKENS to what -c says
        told = (await engine.get("/props")).json()
        return int(told["default_generation_settings"]["n_ctx"])
    answer = (await engine.get("/metrics")).raise_for_status()
    samples = [each for family in text_string_to_metric_families(answer.text) for each in family.samples]
    blocks = [each.labels for each in samples if each.name == "vllm:cache_config_info"]
    ranks = [each for each in samples if each.name == "sglang:max_total_num_tokens"]
    return sum(int(each["num_gpu_blocks"]) * int(each["block_size"]) for each in blocks) + sum(
        int(each.value) for each in ranks if each.labels.get("tp_rank", "0") == "0"
    )


async def follow_pool() -> None:
    """Make the engine's pool the capacity, also after it has started anew with another.

    In a shared budget a gate that started while the engine was away has only its first guess to give: the
    others put what they know over it.
    """
    known = 0
    while not POOL_TOKENS:
        with suppress(httpx.HTTPError, LookupError, ValueError):
            known = await pool_tokens() or known
        if known and admission.snapshot().capacity != int(size(known) * (1 - MARGIN)):
            admission.resize(size(known))
        await anyio.sleep(LOOK_EVERY)


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    async with engine, anyio.create_task_group() as tasks:
        tasks.start_soon(follow_pool)
        with drain_at_sigterm(admission):
            yield
        tasks.cancel_scope.cancel()
    await admission.aclose()


def passed(headers: Iterable[tuple[bytes, bytes]], *without: set[bytes]) -> list[tuple[bytes, bytes]]:
    dropped = ONE_HOP.union(*without)
    return [(name.lower(), value) for name, value in headers if name.lower() not in dropped]


def to_engine(scope: Scope, body: bytes) -> httpx.Request:
    """The request as it came: ``httpx.Request`` adds none of a client's own headers."""
    path = engine.base_url.raw_path.rstrip(b"/") + (scope.get("raw_path") or quote(scope["path"]).encode())
    query = b"?" + scope["query_string"] if scope["query_string"] else b""
    url = engine.base_url.copy_with(raw_path=path + query)
    return httpx.Request(scope["method"], url, headers=passed(scope["headers"]), content=body)


async def from_engine(answer: httpx.Response, send: Send) -> None:
    """The engine's answer, part by part as it comes."""
    try:
        headers = passed(answer.headers.raw, SERVERS_OWN)
        await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
        async for part in answer.aiter_raw():
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    finally:
        await answer.aclose()


class Forward:
    """Every request that is not the gate's own, on to the engine."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            request = to_engine(scope, await Request(scope, receive).body())
        except ClientDisconnect:
            return

        async def until_gone() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            tasks.cancel_scope.cancel()  # closes the connection to the engine, which stops its work

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(until_gone)
            try:
                answer = await engine.send(request, stream=True)
            except httpx.TransportError:  # away, or it broke off before it had answered
                await AWAY(scope, receive, send)
            else:
                await from_engine(answer, send)
            tasks.cancel_scope.cancel()


app = Starlette(
    lifespan=lifespan,
    routes=[
        Mount("/gate/health", Health(admission)),
        Mount("/gate/metrics", metrics_app()),
        Mount("/gate/status", status_app(admission, allow=local_only)),
        Route("/{path:path}", Forward()),
    ],
)
app.add_middleware(GPUAdmission, admission=admission)
