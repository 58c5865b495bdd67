"""A chat service whose requests start when their bytes fit: one budget, two lanes, and what operators need.

Run it:  python -m examples.qwen_service --port 8000
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import torch
from fastapi import FastAPI, HTTPException
from fastapi.exceptions import RequestValidationError

from gpu_admission import Admission, GPUAdmission, Lane
from gpu_admission.estimators import TransformersLM
from gpu_admission.observe import Metrics, local_only, metrics_app, status_app
from gpu_admission.rules import by_tokens
from gpu_admission.serving import Health, drain_at_sigterm
from gpu_admission.workloads import OpenAI

from .chat import NEW_TOKENS, refusal, routes
from .model import Model, load


def admission_for(model: Model) -> Admission:
    """The budget: what a request takes by the model's own config, and its tokens by its own tokenizer."""
    is_known = torch.cuda.is_available() or "GPU_ADMISSION_CAPACITY" in os.environ
    without_gpu: dict[str, Any] = {} if is_known else {"capacity": "96MiB"}
    return Admission.from_env(  # capacity, timeout, max_waiting, mode and shared from GPU_ADMISSION_*
        name="qwen",
        estimator={"/v1/chat/completions": TransformersLM.from_config(model.network.config)},
        dialect=OpenAI(tokens=model.tokenizer, default_new_tokens=NEW_TOKENS, context=model.context),
        lanes=[Lane("short", guaranteed=0.25, priority=1), Lane("long", limit=0.75)],
        lane=by_tokens(short=512),
        on_reject="openai",
        oom_status=503,
        oom_event=True,
        load_header=True,
        observers=[Metrics()],
        **without_gpu,
    )


def build(path: str | None = None) -> FastAPI:
    """The service in front of the model in ``path``, or ``$MODEL``, or of a random one."""
    model = load(path or os.environ.get("MODEL") or None)
    admission = admission_for(model)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with drain_at_sigterm(admission):
            yield
        await admission.aclose()

    handlers: Any = {HTTPException: refusal, RequestValidationError: refusal}
    app = FastAPI(title="qwen_service", lifespan=lifespan, exception_handlers=handlers)
    app.state.admission = admission
    app.include_router(routes(model))
    app.mount("/metrics", metrics_app())
    app.mount("/health", Health(admission))
    token = os.environ.get("GPU_STATUS_TOKEN")
    app.mount(
        "/gpu", status_app(admission, token=token) if token else status_app(admission, allow=local_only)
    )
    app.add_middleware(GPUAdmission, admission=admission)
    return app
