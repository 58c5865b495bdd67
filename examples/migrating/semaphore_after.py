"""After: as many as fit, by their bytes. The endpoint and its body stay as they are."""

import asyncio

from fastapi import FastAPI
from pydantic import BaseModel

from gpu_admission import GPUAdmission
from gpu_admission.estimators import Linear

app = FastAPI()
app.add_middleware(
    GPUAdmission,
    capacity="2GiB",  # four of the largest: the same safety, and room for many small ones
    estimator=Linear({"new_tokens": "0.25MiB"}, constant="8MiB"),
    max_waiting=100,  # a semaphore's queue has no end, and nobody in it is ever told
    timeout=30,
)


class Prompt(BaseModel):
    prompt: str
    max_tokens: int = 64


@app.post("/generate")
async def generate(body: Prompt) -> dict[str, str]:
    await asyncio.sleep(0.01)  # your model
    return {"text": body.prompt[::-1]}
