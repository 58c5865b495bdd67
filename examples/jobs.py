"""Jobs that outlive their request: POST answers 202 with an id, GET tells state and place, DELETE stops.

Each waits in the queue and holds bytes until it, or its process, ends.  Run it:  uvicorn examples.jobs:app
"""

import asyncio
import math
import secrets
from contextlib import suppress
from typing import NamedTuple

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, Field

from gpu_admission import Admission, Rejected
from gpu_admission.estimators import Constant
from gpu_admission.serving import Job, job

admission = Admission(capacity="8GiB", estimator=Constant("1GiB"), max_waiting=1000)
app, MOST = FastAPI(), 2000  # jobs are kept; the oldest that has ended makes room


class Ask(BaseModel):
    seconds: float = Field(1.0, ge=0, le=3600)


class Work(NamedTuple):
    job: Job
    task: "asyncio.Task[None]"


works: dict[str, Work] = {}


@app.post("/jobs", status_code=202)
async def start(ask: Ask) -> dict[str, str]:
    if len(works) >= MOST:
        ended = next((name for name, work in works.items() if work.task.done()), None)
        if works.pop(ended or "", None) is None:
            raise HTTPException(429, "too many jobs")
    name, one = secrets.token_urlsafe(16), job(admission, "2GiB", timeout=math.inf)
    works[name] = Work(one, asyncio.create_task(run(one, ask.seconds)))
    return {"id": name}


async def run(one: Job, seconds: float) -> None:
    with suppress(Rejected):  # its reason is in one.error
        async with one:
            await asyncio.sleep(seconds)  # your model


@app.api_route("/jobs/{name}", methods=["GET", "DELETE"])
async def look(name: str, request: Request) -> dict[str, object]:
    if name not in works:
        raise HTTPException(404, "no such job")
    one, task = works[name]
    if request.method == "DELETE" and task.cancel():
        await asyncio.wait([task])
    return {"state": one.state, "place": one.place, "forecast": one.forecast, "error": one.error}
