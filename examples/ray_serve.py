"""Ray Serve: the middleware in each replica, and one budget for all replicas on the same GPU.

Run it:  serve run examples.ray_serve:service
Try it:  curl --json '{"prompt": "hello", "max_tokens": 64}' localhost:8000/generate
"""

import asyncio
import os
from typing import Any

import ray
from fastapi import FastAPI
from pydantic import BaseModel
from ray import serve
from starlette.types import ASGIApp

from gpu_admission import GPUAdmission, current_lease
from gpu_admission.estimators import Linear

GPU_SHARE = float(os.environ.get("GPU_SHARE", "0.5"))  # two replicas on each GPU; 0 where there is none


def metered(app: ASGIApp) -> GPUAdmission:
    """Made in each replica, which then knows its GPU. Those on one GPU meet in one folder of their host."""
    gpus = ray.get_runtime_context().get_accelerator_ids().get("GPU") or ["0"]
    return GPUAdmission(
        app,
        capacity="8GiB",
        estimator=Linear({"new_tokens": "1MiB"}, constant="1984MiB"),
        shared=f"{os.environ.get('SHARED_FOLDER', '/dev/shm')}/gpu{gpus[0]}",
    )


app = FastAPI()
app.add_middleware(metered)


class Prompt(BaseModel):
    prompt: str
    max_tokens: int = 64


# Ray must not hold back what the budget is there to queue: max_ongoing_requests is above its max_waiting.
@serve.deployment(num_replicas=2, max_ongoing_requests=200, ray_actor_options={"num_gpus": GPU_SHARE})
@serve.ingress(app)
class Model:
    @app.post("/generate")
    async def generate(self, body: Prompt) -> dict[str, Any]:
        await asyncio.sleep(0.2)  # your model
        lease = current_lease()
        return {"text": body.prompt[::-1], "held": lease.bytes if lease else 0, "replica": os.getpid()}


service = Model.bind()  # type: ignore[attr-defined]
