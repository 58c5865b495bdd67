"""One budget, several doors in FastAPI: a decorator, a dependency, and a lease at the model call.

Run it:  uvicorn examples.fastapi_routes:app
"""

from typing import Annotated

from fastapi import Depends, FastAPI
from pydantic import BaseModel

from gpu_admission import Admission, Lease, RequestInfo, current_lease

admission = Admission(capacity="2GiB", estimator="256MiB", timeout=5)
app = FastAPI()


class Prompt(BaseModel):
    prompt: str
    max_tokens: int = 64


def by_length(info: RequestInfo) -> int:
    """64 MiB, and 1 MiB for each new token."""
    return (64 + info.workload.new_tokens) * 2**20


@app.post("/generate")
@admission.admit(estimator=by_length)
async def generate(body: Prompt) -> dict[str, int]:
    """The decorator stands below the route; the endpoint's signature stays as it is."""
    lease = current_lease()
    return {"held_bytes": lease.bytes if lease else 0}


@app.post("/classify")
@admission.admit
def classify(body: Prompt) -> dict[str, str]:
    """A plain function runs in the thread pool, and holds its bytes until it has returned."""
    return {"label": "short" if len(body.prompt) < 100 else "long"}


@app.post("/embed")
async def embed(
    body: Prompt, lease: Annotated[Lease, Depends(admission.dependency("128MiB"))]
) -> dict[str, int]:
    return {"held_bytes": lease.bytes}


@app.post("/pipeline")
async def pipeline(body: Prompt) -> dict[str, int]:
    """Work that needs no memory stays outside of the lease."""
    async with admission.lease("512MiB") as lease:
        return {"held_bytes": lease.bytes}
