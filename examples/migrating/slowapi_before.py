"""Before: slowapi lets each client in five times a second, whatever it asks and however full the card is."""

from fastapi import FastAPI, Request
from pydantic import BaseModel
from slowapi import Limiter, _rate_limit_exceeded_handler
from slowapi.errors import RateLimitExceeded
from slowapi.util import get_remote_address

app = FastAPI()
limiter = Limiter(key_func=get_remote_address)
app.state.limiter = limiter
app.add_exception_handler(RateLimitExceeded, _rate_limit_exceeded_handler)  # type: ignore[arg-type]


class Prompt(BaseModel):
    prompt: str
    max_tokens: int = 64


@app.post("/generate")
@limiter.limit("5/second")
async def generate(request: Request, body: Prompt) -> dict[str, str]:
    return {"text": body.prompt[::-1]}  # your model
