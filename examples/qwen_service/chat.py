"""Chat completions as OpenAI's clients ask for them: what is read, how it is answered."""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal

import torch
from fastapi import APIRouter, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, Field
from transformers import AsyncTextIteratorStreamer

from gpu_admission.serving import offload

from .model import Answer, Model

NEW_TOKENS = 256
"""Of an answer, where a request names no limit: the admission must count with the same."""


class Message(BaseModel):
    role: Literal["system", "user", "assistant"]
    content: str


class StreamOptions(BaseModel):
    include_usage: bool = False


class Chat(BaseModel):
    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    n: Literal[1] = 1
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()

    @property
    def new_tokens(self) -> int:
        return self.max_completion_tokens or self.max_tokens or NEW_TOKENS

    def sampling(self) -> dict[str, float | bool]:
        if not self.temperature:
            return {"max_new_tokens": self.new_tokens, "do_sample": False}
        chosen = {"temperature": self.temperature, "top_p": self.top_p, "top_k": 0}
        return {"max_new_tokens": self.new_tokens, "do_sample": True, **chosen}


@dataclass
class Generation:
    """One answer in the making: its text piece by piece, then how it ended."""

    model: Model
    chat: Chat
    prompt: torch.Tensor
    stop: threading.Event = field(default_factory=threading.Event)
    ended: Answer = field(default_factory=lambda: Answer(0, False))

    async def pieces(self) -> AsyncIterator[str]:
        """The text as it comes. Whoever stops reading stops the model at its next token."""
        streamer = AsyncTextIteratorStreamer(self.model.tokenizer, skip_prompt=True, skip_special_tokens=True)
        work = partial(self.model.answer, self.prompt, streamer, self.stop, **self.chat.sampling())
        running = asyncio.create_task(offload(work))  # holds the lease until the thread has ended
        try:
            async for piece in streamer:
                yield piece
            self.ended = await running
        finally:
            self.stop.set()

    def usage(self) -> dict[str, int]:
        asked, made = self.prompt.shape[1], self.ended.new_tokens
        return {"prompt_tokens": asked, "completion_tokens": made, "total_tokens": asked + made}

    def finish_reason(self) -> str:
        return "stop" if self.ended.reached_end else "length"


def routes(model: Model) -> APIRouter:
    """``/v1/chat/completions`` and ``/v1/models`` of ``model``."""
    router = APIRouter(prefix="/v1")

    @router.get("/models")
    async def models() -> dict[str, Any]:
        one = {"id": model.name, "object": "model", "created": 0, "owned_by": "gpu_admission"}
        return {"object": "list", "data": [one]}

    @router.post("/chat/completions", response_model=None)
    async def complete(chat: Chat, request: Request) -> StreamingResponse | dict[str, Any]:
        prompt = model.prompt([message.model_dump() for message in chat.messages])
        if prompt.shape[1] + chat.new_tokens > model.context:
            raise HTTPException(400, f"prompt and answer are longer than the context of {model.context}")
        generation = Generation(model, chat, prompt)
        if chat.stream:
            return StreamingResponse(events(generation), media_type="text/event-stream")
        text = [piece async for piece in until_gone(request, generation)]
        message = {"role": "assistant", "content": "".join(text)}
        choice = {"index": 0, "message": message, "finish_reason": generation.finish_reason()}
        return {**head(model, "chat.completion"), "choices": [choice], "usage": generation.usage()}

    return router


async def until_gone(request: Request, generation: Generation) -> AsyncIterator[str]:
    """The pieces, as long as the client is there."""
    async for piece in generation.pieces():
        if await request.is_disconnected():
            generation.stop.set()
        yield piece


async def events(generation: Generation) -> AsyncIterator[str]:
    """The answer as server-sent events."""
    top = head(generation.model, "chat.completion.chunk")

    def event(choices: list[dict[str, Any]], **more: Any) -> str:
        return f"data: {json.dumps({**top, 'choices': choices, **more})}\n\n"

    yield event([{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])
    async for piece in generation.pieces():
        yield event([{"index": 0, "delta": {"content": piece}, "finish_reason": None}])
    yield event([{"index": 0, "delta": {}, "finish_reason": generation.finish_reason()}])
    if generation.chat.stream_options.include_usage:
        yield event([], usage=generation.usage())
    yield "data: [DONE]\n\n"


async def refusal(request: Request, error: Exception) -> JSONResponse:
    """What is wrong with a request, in OpenAI's form."""
    status, message = 400, "the body is not a chat that can be read"
    if isinstance(error, HTTPException):
        status, message = error.status_code, str(error.detail)
    elif isinstance(error, RequestValidationError):
        message = "; ".join(f"{'.'.join(map(str, e['loc'][1:]))}: {e['msg']}" for e in error.errors()[:3])
    told = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return JSONResponse({"error": told}, status)


def head(model: Model, kind: str) -> dict[str, Any]:
    """What an answer and each of its chunks begin with."""
    name = f"chatcmpl-{secrets.token_hex(12)}"
    return {"id": name, "object": kind, "created": int(time.time()), "model": model.name}
