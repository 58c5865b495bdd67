"""Paths of calls that steer a server instead of giving it work. Owns the list.

They interrupt, cancel, unload, or count and show: queued behind the work that they should stop,
they would come too late. Each pattern is a whole path, with ``*`` for one segment. Not on the list
are paths that a user's own app may well use for work (``/queue``, ``/history``), calls that take
memory (load, wake up), and mere endings of paths, which a client could put into a path parameter.
"""

from __future__ import annotations

import re
from typing import Final

CONTROL_PATHS: Final[tuple[str, ...]] = (
    # OpenAI, vLLM and all that serve its API
    "/v1/responses/*/cancel",
    "/v1/batches/*/cancel",
    "/v1/uploads/*/cancel",
    "/v1/videos/*/cancel",
    # Anthropic, vLLM, llama.cpp
    "/v1/messages/count_tokens",
    "/v1/messages/batches/*/cancel",
    # vLLM
    "/tokenize",
    "/detokenize",
    "/reset_prefix_cache",
    "/reset_mm_cache",
    "/reset_encoder_cache",
    "/sleep",
    "/v1/unload_lora_adapter",
    "/start_profile",
    "/stop_profile",
    "/is_scaling_elastic_ep",
    # SGLang
    "/abort_request",
    "/flush_cache",
    "/pause_generation",
    "/continue_generation",
    "/release_memory_occupation",
    "/unload_lora_adapter",
    "/open_session",
    "/close_session",
    # llama.cpp
    "/apply-template",
    "/slots/*",
    "/lora-adapters",
    "/models/unload",
    "/props",
    # Ollama
    "/api/show",
    "/api/copy",
    "/api/delete",
    # KServe, Triton
    "/v2/repository/index",
    "/v2/repository/models/*/unload",
    "/v2/systemsharedmemory/register",
    "/v2/systemsharedmemory/unregister",
    "/v2/systemsharedmemory/region/*/register",
    "/v2/systemsharedmemory/region/*/unregister",
    "/v2/cudasharedmemory/unregister",
    "/v2/cudasharedmemory/region/*/register",
    "/v2/cudasharedmemory/region/*/unregister",
    "/v2/trace/setting",
    "/v2/logging",
    # Stable Diffusion web UI, Forge
    "/sdapi/v1/interrupt",
    "/sdapi/v1/skip",
    "/sdapi/v1/unload-checkpoint",
    "/sdapi/v1/refresh-checkpoints",
    "/sdapi/v1/refresh-vae",
    "/sdapi/v1/refresh-loras",
    "/sdapi/v1/refresh-embeddings",
    "/sdapi/v1/server-kill",
    "/sdapi/v1/server-stop",
    "/sdapi/v1/server-restart",
    "/internal/progress",
    # ComfyUI
    "/interrupt",
    "/free",
    "/api/interrupt",
    "/api/free",
)
"""Patterns of control paths, grouped by the server that they belong to."""

_CONTROL: Final = re.compile("|".join(re.escape(path).replace(r"\*", "[^/]+") for path in CONTROL_PATHS))


def is_control(path: str) -> bool:
    """Whether a request to ``path`` steers a server, so that it must not wait behind work."""
    return _CONTROL.fullmatch(path) is not None
