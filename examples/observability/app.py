"""An app to watch, without a GPU: ``uvicorn app:app``, then ``/gpu`` and ``/metrics/``.

It sleeps where a model would run. The status page is for this machine only, or for whoever
knows GPU_STATUS_TOKEN where that is set.
"""

import asyncio
import logging
import os

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from gpu_admission import Admission, GPUAdmission, Lane, RequestInfo, current_lease
from gpu_admission.devices import HostMemory
from gpu_admission.observe import Logs, Metrics, local_only, metrics_app, status_app

logging.basicConfig(level=logging.INFO)
TOKEN = os.environ.get("GPU_STATUS_TOKEN")


def size(info: RequestInfo) -> int:
    """What the request asks for, in MiB: {"mib": 512, "seconds": 2}."""
    return int(info.json["mib"]) * 2**20


def lane(info: RequestInfo) -> str:
    return "short" if info.json.get("seconds", 1) <= 1 else "long"


admission = Admission(
    capacity="4GiB",
    devices=[HostMemory()],
    estimator={"/generate": size},
    lanes=[Lane("short", guaranteed=0.25, priority=1), Lane("long", limit=0.75)],
    lane=lane,
    timeout=10,
    max_waiting=20,
    observers=[Metrics(), Logs()],
)


async def generate(request: Request) -> JSONResponse:
    wanted = await request.json()
    lease = current_lease()
    assert lease is not None
    await asyncio.sleep(wanted.get("seconds", 1))
    lease.record_peak(lease.bytes * 9 // 10)
    return JSONResponse({"held": lease.bytes, "waited": lease.waited})


status = status_app(admission, token=TOKEN) if TOKEN else status_app(admission, allow=local_only)
work = Route("/generate", generate, methods=["POST"])
app = Starlette(routes=[work, Mount("/metrics", metrics_app()), Mount("/gpu", status)])
app.add_middleware(GPUAdmission, admission=admission)
