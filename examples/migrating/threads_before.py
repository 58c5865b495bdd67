"""Before: a pool of two threads before the model. A client that hangs up still keeps its thread busy."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

from fastapi import FastAPI
from pydantic import BaseModel

app = FastAPI()
pool = ThreadPoolExecutor(max_workers=2)


class Prompt(BaseModel):
    prompt: str
    max_tokens: int = 64


def run(prompt: str) -> str:
    time.sleep(0.01)  # your model
    return prompt[::-1]


@app.post("/generate")
async def generate(body: Prompt) -> dict[str, str]:
    text = await asyncio.get_running_loop().run_in_executor(pool, run, body.prompt)
    return {"text": text}
