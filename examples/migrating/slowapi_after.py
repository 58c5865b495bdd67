"""After: whoever comes may start while bytes are free, and a busy client can't starve the others.

A limit by time is for billing and abuse, and may stay beside this one; what the card holds is no rate.
"""

from fastapi import FastAPI
from pydantic import BaseModel

from gpu_admission import Admission, RequestInfo
from gpu_admission.estimators import Linear


def client(info: RequestInfo) -> object:
    """The key of slowapi's ``get_remote_address``, as the tenant that shares fairly."""
    return (info.scope.get("client") or ("unknown",))[0]


admission = Admission(
    capacity="2GiB", estimator=Linear({"new_tokens": "0.25MiB"}, constant="8MiB"), flow=client, timeout=30
)
app = FastAPI()


class Prompt(BaseModel):
    prompt: str
    max_tokens: int = 64


@app.post("/generate")
@admission.admit  # where @limiter.limit stood; no `request` is needed in the signature
async def generate(body: Prompt) -> dict[str, str]:
    return {"text": body.prompt[::-1]}  # your model
