"""Before: ``asyncio.Semaphore(4)``, where 4 is what fits of the largest request."""

import asyncio

from fastapi import FastAPI
from pydantic import BaseModel

app = FastAPI()
model_lock = asyncio.Semaphore(4)


class Prompt(BaseModel):
    prompt: str
    max_tokens: int = 64


@app.post("/generate")
async def generate(body: Prompt) -> dict[str, str]:
    async with model_lock:
        await asyncio.sleep(0.01)  # your model
        return {"text": body.prompt[::-1]}
