"""A program that a user might write with every door and every part, for type checkers; it is never run."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gpu_admission import (
    Admission,
    Estimate,
    GPUAdmission,
    Lane,
    Lease,
    Rejected,
    RequestInfo,
    Snapshot,
    Workload,
    current_lease,
)
from gpu_admission.devices import HostMemory, NvmlDevice
from gpu_admission.estimators import Constant, KVCache, Learned, Linear, Traced, TransformersLM
from gpu_admission.guards import FaultGuard, Health, Limit, MemoryGuard, OutOfMemoryGuard, ThermalGuard
from gpu_admission.observe import DecisionLog, Metrics, local_only, metrics_app, status_app
from gpu_admission.rules import by_tokens
from gpu_admission.serving import Batcher, Instances, drain_at_sigterm, job, offload
from gpu_admission.types import DeviceReading, Event, Outcome


class Words:
    """A dialect of one's own."""

    def read(self, info: RequestInfo, /) -> Workload:
        return Workload(prompt_tokens=len(str(info.json).split()))


class Nights:
    """A guard of one's own."""

    name = "nights"
    reason = ""

    def ceiling(self, readings: object, outcomes: object, now: float) -> int | Limit | None:
        return Limit(bytes=2**30, reason="others use the card at night") if now % 2 else None


def by_hand(info: RequestInfo) -> int:
    return info.workload.prompt_tokens * 2**20


async def asked(info: RequestInfo) -> Estimate:
    return Estimate(2**30, parts={"cache": 2**29, "rest": 2**29})


def watch(event: Event) -> None:
    print(event.kind, event.bytes)


def refuse(info: RequestInfo, rejected: Rejected) -> Response:
    return JSONResponse({"error": rejected.detail}, rejected.status)


def tenant(info: RequestInfo) -> str:
    return info.headers.get("x-tenant", "")


admission = Admission(
    capacity="85%",
    estimator={
        "/v1/chat/**": Learned(TransformersLM.from_config("config.json", dtype="bfloat16"), usage=True),
        "/v1/completions": KVCache.from_config("config.json"),
        "/words": Linear({"prompt_tokens": "1MiB"}, constant="40MiB"),
        "/traced": Traced.load("trace.json"),
        "/own": by_hand,
        "/asked": asked,
        "/fixed": "300MiB",
        "/number": 300,
    },
    dialect={"/words": Words(), "/v1/**": "vllm"},
    devices=[NvmlDevice(0), HostMemory()],
    guards=[MemoryGuard(), OutOfMemoryGuard(), FaultGuard(), ThermalGuard(), Nights()],
    lanes=[Lane("short", guaranteed=0.3), Lane("long", limit=0.8, timeout=60)],
    lane=by_tokens(short=512),
    flow=tenant,
    observers=[Metrics(), DecisionLog("decisions.jsonl"), watch],
    on_reject=refuse,
    while_waiting="sse",
    load_header=True,
    shared="/dev/shm/gpu0",
)
operated = Admission.from_env(estimator=Constant("1.2GiB"), on_reject="openai")


class Model:
    ready = False


def answer(model: Model, words: str) -> int:
    return len(words) if model.ready else 0


def embed_all(texts: list[str]) -> list[int]:
    return [len(text) for text in texts]


embed: Batcher[str, int] = Batcher(embed_all, cost="16MiB", admission=operated)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
    with drain_at_sigterm(admission):
        async with embed:
            yield
    await admission.aclose()


app = FastAPI(lifespan=lifespan)
app.add_middleware(GPUAdmission, admission=admission)
app.mount("/metrics", metrics_app(inference_gateway=True))
app.mount("/gpu", status_app(admission, allow=local_only))
app.mount("/health", Health(admission))
wrapped = GPUAdmission(app, capacity=20 * 2**30, estimator="1GiB", mode="shadow", hold="response")


@app.post("/generate")
@admission.admit(estimator=Constant("2GiB"))
async def generate(prompt: str) -> dict[str, int]:
    lease = current_lease()
    return {"held": lease.bytes if lease is not None else 0}


@app.post("/plain")
@admission.admit
def plain(request: Request) -> str:
    return request.url.path


@app.post("/embed")
async def embed_one(
    text: str, lease: Annotated[Lease, Depends(admission.dependency("300MiB"))]
) -> dict[str, int]:
    lease.record_peak(2**20)
    lease.resize("200MiB")
    with lease.keep():
        return {"embedding": await embed(text)}


async def summarise() -> None:
    async with admission.lease("2GiB", lane="long", timeout=5) as lease:
        print(lease.device, lease.waited, lease.estimate.bytes)
        await offload(print, "in a thread")
    try:
        async with job(admission, "2GiB", timeout=60) as lease:
            print(lease.bytes)
    except Rejected as rejected:
        print(rejected.reason, rejected.status, rejected.retry_after, rejected.needed, rejected.capacity)


def in_a_thread() -> None:
    with operated.lease("1GiB", own=True) as lease:
        print(lease.bytes)


def look() -> Snapshot:
    admission.resize("18GiB")
    snapshot = admission.snapshot()
    print(
        snapshot.to_dict(),
        snapshot.in_use,
        [member.pid for member in snapshot.members],
        str(admission.report()),
    )
    return snapshot


async def models() -> int:
    instances = Instances(Model, 2)
    async with instances, instances.borrow() as model:
        model.ready = True
    return await instances.run(answer, "words")


def read(reading: DeviceReading, outcome: Outcome) -> int | None:
    return reading.free if outcome.kind == "oom" else None
