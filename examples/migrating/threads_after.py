"""After: bytes decide, and ``offload`` holds them until the thread has really ended.

Who hangs up in the queue takes no thread. For models that can't run twice at once: ``serving.Instances``.
"""

import time

from fastapi import FastAPI
from pydantic import BaseModel

from gpu_admission import GPUAdmission
from gpu_admission.estimators import Linear
from gpu_admission.serving import offload

app = FastAPI()
app.add_middleware(
    GPUAdmission, capacity="2GiB", estimator=Linear({"new_tokens": "0.25MiB"}, constant="8MiB"), timeout=30
)


class Prompt(BaseModel):
    prompt: str
    max_tokens: int = 64


def run(prompt: str) -> str:
    time.sleep(0.01)  # your model
    return prompt[::-1]


@app.post("/generate")
async def generate(body: Prompt) -> dict[str, str]:
    return {"text": await offload(run, body.prompt)}
