"""One ordinary request to each dialect, and where its numbers stand: what conformance starts from."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

from gpu_admission.request import Dialect, RequestInfo
from gpu_admission.workloads import (
    TEI,
    TGI,
    VLLM,
    Anthropic,
    ComfyUI,
    Fields,
    Guess,
    KServe,
    Ollama,
    OpenAI,
    OpenAIMedia,
    Rerank,
    SGLang,
    StableDiffusion,
    Whisper,
)
from tests.workloads.asking import request, upload


class Case(NamedTuple):
    """A request that a dialect reads; paths are names joined by dots."""

    dialect: Dialect
    path: str
    body: dict[str, Any]
    limit: str = ""
    """Where the limit on new tokens stands."""
    field: str = "new_tokens"
    """The field of the workload that ``limit`` sets."""
    default: int = 0
    """Its value where the body names none."""
    numbers: tuple[str, ...] = ()
    """Where other numbers stand that make a request larger."""
    text: str = ""
    """Where text stands that makes it larger."""


CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is a ferry?"}]
OPTIONS = {"num_ctx": 8192, "num_predict": 64}
TENSOR = {"name": "x", "shape": [2, 3], "datatype": "FP32", "data": [1, 2, 3, 4, 5, 6]}

CASES = {
    "openai chat": Case(
        OpenAI(default_new_tokens=700), "/v1/chat/completions", {"messages": CHAT, "max_tokens": 64},
        "max_tokens", default=700, text="messages.1.content",
        numbers=("n", "best_of", "max_completion_tokens", "min_tokens", "n_predict"),
    ),
    "openai chat in a context": Case(
        OpenAI(context=8192, tokens="bound"), "/v1/chat/completions",
        {"messages": CHAT, "max_completion_tokens": 64},
        "max_completion_tokens", default=8109, text="messages.1.content",
    ),
    "openai completions": Case(
        OpenAI(completion_new_tokens=17), "/v1/completions", {"prompt": "Once", "max_tokens": 64},
        "max_tokens", default=1024, numbers=("n", "best_of"), text="prompt",
    ),
    "openai embeddings": Case(OpenAI(), "/v1/embeddings", {"input": ["Once", "twice"]}, text="input.0"),
    "openai responses": Case(
        OpenAI(default_new_tokens=700), "/v1/responses", {"input": CHAT, "max_output_tokens": 64},
        "max_output_tokens", default=700, text="input.1.content",
    ),
    "vllm": Case(
        VLLM(default_new_tokens=700), "/v1/chat/completions", {"messages": CHAT, "max_tokens": 64},
        "max_tokens", default=700, numbers=("n",), text="messages.1.content",
    ),
    "tgi": Case(
        TGI(default_new_tokens=700), "/generate", {"inputs": "Once", "parameters": {"max_new_tokens": 64}},
        "parameters.max_new_tokens", default=700, numbers=("parameters.best_of",), text="inputs",
    ),
    "ollama generate": Case(
        Ollama(default_new_tokens=700), "/api/generate", {"prompt": "Once", "options": {"num_predict": 64}},
        "options.num_predict", default=700, text="prompt",
    ),
    "ollama chat": Case(
        Ollama(), "/api/chat", {"messages": CHAT, "options": {"num_ctx": 64}},
        "options.num_ctx", "context",
    ),
    "ollama embed": Case(Ollama(), "/api/embed", {"input": "Once"}, text="input"),
    "anthropic": Case(
        Anthropic(default_new_tokens=700), "/v1/messages", {"messages": CHAT, "max_tokens": 64},
        "max_tokens", default=700, text="messages.1.content",
    ),
    "sglang": Case(
        SGLang(default_new_tokens=700), "/generate",
        {"text": "Once", "sampling_params": {"max_new_tokens": 64}},
        "sampling_params.max_new_tokens", default=700, numbers=("sampling_params.n",), text="text",
    ),
    "comfyui": Case(
        ComfyUI(), "/prompt", {"prompt": {"5": {"class_type": "T", "inputs": {"text": "Once", "width": 64}}}},
        text="prompt.5.inputs.text", numbers=("prompt.5.inputs.width",),
    ),
    "videos": Case(
        OpenAIMedia(), "/v1/videos", {"prompt": "a ferry", "num_frames": 64},
        "num_frames", "frames", 0, numbers=("width",), text="prompt",
    ),
    "kserve infer": Case(KServe(), "/v2/models/m/infer", {"inputs": [TENSOR]}),
    "kserve generate": Case(
        KServe(default_new_tokens=700), "/v2/models/m/generate",
        {"text_input": "Once", "parameters": {"max_tokens": 64}},
        "parameters.max_tokens", default=700, numbers=("parameters.beam_width",), text="text_input",
    ),
    "kserve generate beside": Case(
        KServe(default_new_tokens=700), "/v2/models/m/generate", {"text_input": "Once", "max_tokens": 64},
        "max_tokens", default=700, text="text_input",
    ),
    "stable diffusion": Case(
        StableDiffusion(default_side=700), "/sdapi/v1/txt2img",
        {"prompt": "a ferry", "width": 64, "batch_size": 2},
        "width", "width", 700, numbers=("height", "batch_size"), text="prompt",
    ),
    "rerank": Case(
        Rerank(), "/rerank", {"query": "ferry", "documents": ["a boat", {"text": "a bridge"}]},
        text="documents.0",
    ),
    "tei": Case(TEI(), "/embed", {"inputs": ["Once", "twice"]}, text="inputs.0"),
    "speech": Case(OpenAIMedia(), "/v1/audio/speech", {"input": "Once"}, text="input"),
    "pictures": Case(
        OpenAIMedia(), "/v1/images/generations", {"prompt": "a ferry", "n": 64},
        "n", "sequences", 1, text="prompt",
    ),
    "whisper": Case(Whisper(), "/v1/audio/transcriptions", {"url": "https://x/a.mp3", "beam_size": 64},
                    "beam_size", "beams", 5, numbers=("best_of", "batch_size")),
    "fields": Case(
        Fields(prompt="input.text", new_tokens="params.max_len", sequences="n", features={"steps": "steps"},
               default_new_tokens=700),
        "/run", {"input": {"text": "Once"}, "params": {"max_len": 64}},
        "params.max_len", default=700, numbers=("n",), text="input.text",
    ),
    "guess": Case(
        Guess(default_new_tokens=700), "/run", {"question": "Once", "max_new_tokens": 64},
        "max_new_tokens", default=700, numbers=("n", "options.num_predict"), text="question",
    ),
    "guess of a known kind": Case(
        Guess(default_new_tokens=700), "/run", {"prompt": "Once", "max_tokens": 64},
        "max_tokens", default=700, numbers=("n", "sampling_params.max_new_tokens"), text="prompt",
    ),
}  # fmt: skip

UPLOADS: dict[str, tuple[Dialect, RequestInfo]] = {
    "whisper": (Whisper(), upload(("file", "a.mp3", "audio/mpeg", b"ID3" + bytes(5_000)))),
    "pictures": (
        OpenAIMedia(),
        upload(("image", "a.png", "image/png", b"\x89PNG"), ("prompt", None, "", b"x")),
    ),
    "fields": (
        Fields(images="picture", prompt="text"),
        upload(("picture", "a.png", "image/png", b"\x89PNG")),
    ),
    "guess": (Guess(), upload(("picture", "a.png", "image/png", b"\x89PNG"))),
}
"""Uploads, for those that read them."""


def asked(case: Case, body: Any = None) -> RequestInfo:
    """The request of ``case``, with another ``body`` where one is given."""
    return request(case.body if body is None else body, case.path)


def changed(body: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of ``body`` with ``value`` at ``path``."""
    made = copy.deepcopy(body)
    *parents, last = path.split(".")
    place: Any = made
    for step in parents:
        place = place[int(step)] if isinstance(place, list) else place.setdefault(step, {})
    place[int(last) if isinstance(place, list) else last] = value
    return made


def without(body: dict[str, Any], path: str) -> dict[str, Any]:
    """A copy of ``body`` that has nothing at ``path``."""
    made = copy.deepcopy(body)
    *parents, last = path.split(".")
    place: Any = made
    for step in parents:
        place = place[step]
    place.pop(last, None)
    return made


def limits() -> Iterator[str]:
    """The names of the cases that have a limit."""
    return (name for name, case in CASES.items() if case.limit)
