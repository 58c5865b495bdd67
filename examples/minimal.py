"""A Starlette app whose requests start when their bytes fit.

Run it:  uvicorn examples.minimal:app
Try it:  curl -d '{"prompt": "hello", "max_tokens": 64}' localhost:8000/generate
"""

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from gpu_admission import GPUAdmission, current_lease
from gpu_admission.estimators import Linear

# 40 MiB a request, and 128 KiB for each prompt token and each token that may be made.
estimator = Linear({"prompt_tokens": "128KiB", "new_tokens": "128KiB"}, constant="40MiB")


async def generate(request: Request) -> JSONResponse:
    prompt = (await request.json())["prompt"]
    await anyio.sleep(0.05)  # your model
    lease = current_lease()
    return JSONResponse({"text": prompt[::-1], "held_bytes": lease.bytes if lease else 0})


app = Starlette(routes=[Route("/generate", generate, methods=["POST"])])
app.add_middleware(GPUAdmission, capacity="2GiB", estimator=estimator, timeout=10)
