"""Several workers in front of one GPU, with one budget: see README.md beside this file.

Run it:  uvicorn examples.workers.app:app --workers 4
Try it:  curl -d '{"seconds": 1}' localhost:8000/generate
"""

import os
import time

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from gpu_admission import Admission, GPUAdmission
from gpu_admission.observe import local_only, status_app

# The same place in every worker: a folder on this host, or redis://host/0?name=gpu0 for several hosts.
admission = Admission(
    capacity="8GiB",
    estimator="2GiB",
    timeout=30,
    shared=os.environ.get("SHARED", "/dev/shm/gpu0"),
    lease_ttl=10,
)


async def generate(request: Request) -> JSONResponse:
    began = time.monotonic()
    await anyio.sleep((await request.json())["seconds"])  # your model
    return JSONResponse({"worker": os.getpid(), "began": began, "ended": time.monotonic()})


app = Starlette(
    routes=[
        Route("/generate", generate, methods=["POST"]),
        Mount("/gpu", status_app(admission, allow=local_only)),
    ]
)
app.add_middleware(GPUAdmission, admission=admission)
