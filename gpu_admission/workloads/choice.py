"""Which dialect reads a request. Owns the dialects' names, and the path endings that select them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, Final

from gpu_admission.request import Dialect, FullDialect
from gpu_admission.workloads.anthropic import Anthropic
from gpu_admission.workloads.comfyui import ComfyUI
from gpu_admission.workloads.events import problem_event
from gpu_admission.workloads.fields import Fields
from gpu_admission.workloads.guess import Guess
from gpu_admission.workloads.kserve import KServe
from gpu_admission.workloads.limits import unchanged
from gpu_admission.workloads.ollama import Ollama
from gpu_admission.workloads.openai import OpenAI
from gpu_admission.workloads.openaimedia import OpenAIMedia
from gpu_admission.workloads.rerank import Rerank
from gpu_admission.workloads.sglang import SGLang
from gpu_admission.workloads.stablediffusion import StableDiffusion
from gpu_admission.workloads.tei import TEI
from gpu_admission.workloads.tgi import TGI
from gpu_admission.workloads.vllm import VLLM
from gpu_admission.workloads.whisper import Whisper

DIALECTS: Final[dict[str, Callable[..., FullDialect]]] = {
    "anthropic": Anthropic,
    "comfyui": ComfyUI,
    "fields": Fields,
    "guess": Guess,
    "kserve": KServe,
    "ollama": Ollama,
    "openai": OpenAI,
    "openai-media": OpenAIMedia,
    "rerank": Rerank,
    "sglang": SGLang,
    "stable-diffusion": StableDiffusion,
    "tei": TEI,
    "tgi": TGI,
    "triton": KServe,
    "vllm": VLLM,
    "whisper": Whisper,
}
"""Each dialect by its name."""

_TWO_SEGMENTS: Final = {
    "api/generate": "ollama",
    "api/chat": "ollama",
    "api/embed": "ollama",
    "api/embeddings": "ollama",
    "api/show": "ollama",
    "v1/messages": "anthropic",
    "messages/count_tokens": "anthropic",
    "completions/batch": "vllm",
    "v1/embed": "openai",
    "v2/embed": "openai",
    "images/generations": "openai-media",
    "images/edits": "openai-media",
    "images/variations": "openai-media",
    "audio/speech": "openai-media",
    "v1/txt2img": "stable-diffusion",
    "v1/img2img": "stable-diffusion",
}
_ONE_SEGMENT: Final = {
    "completion": "openai",
    "completions": "openai",
    "infill": "openai",
    "detokenize": "openai",
    "apply-template": "openai",
    "embeddings": "openai",
    "responses": "openai",
    "videos": "openai-media",
    "transcriptions": "whisper",
    "translations": "whisper",
    "rerank": "rerank",
    "pooling": "vllm",
    "classify": "vllm",
    "score": "vllm",
    "tokenize": "vllm",
    "generate_stream": "tgi",
    "infer": "kserve",
    "embed": "tei",
    "embed_all": "tei",
    "embed_sparse": "tei",
    "similarity": "tei",
}


_CACHED_PATH: Final = 256
"""Length of the longest path that is remembered: clients choose the paths."""
_OFFLOAD_BYTES: Final = 32 * 1024
"""Larger bodies can hold up the loop for 50 ms: 4,000 objects at some ten calls each."""


class Completed:
    """A user's own dialect, with defaults for what it lacks."""

    __slots__ = ("clamp", "offload_bytes", "read", "sse_error")

    def __init__(self, given: Dialect) -> None:
        self.read = given.read
        self.clamp: Callable[[bytes, int], bytes] = getattr(given, "clamp", unchanged)
        self.sse_error: Callable[[str, str], bytes] = getattr(given, "sse_error", problem_event)
        self.offload_bytes: int = getattr(given, "offload_bytes", _OFFLOAD_BYTES)


def names() -> list[str]:
    """The names that ``dialect`` knows."""
    return sorted(DIALECTS)


def dialect(choice: str | Dialect, **options: Any) -> Dialect:
    """The dialect named ``choice`` with ``options``; an object with ``read`` is returned as it is.

    Raises ``ValueError`` for another name and ``TypeError`` for an object that is no dialect.
    """
    if isinstance(choice, str):
        if choice not in DIALECTS:
            raise ValueError(f"dialect must be one of {names()} or an object, got {choice!r}")
        return DIALECTS[choice](**options)
    if not callable(getattr(choice, "read", None)):
        raise TypeError(f"a dialect needs a method read(info), {type(choice).__name__} has none")
    if options:
        raise TypeError("options go with a dialect's name, not with an object")
    return choice


def dialect_for(path: str) -> FullDialect:
    """The dialect of a request to ``path``, by its last segments; ``Guess`` for any other."""
    return _by_default(name_for(path))


def choose(path: str, given: Dialect | None) -> FullDialect:
    """The dialect that reads a request to ``path``: the one ``given``, or else the path's."""
    if given is not None:
        return Completed(given)
    return _remembered(path) if len(path) <= _CACHED_PATH else dialect_for(path)


_remembered = lru_cache(maxsize=256)(dialect_for)


def name_for(path: str) -> str:
    """The name of the dialect of a request to ``path``."""
    before, _, last = path.rstrip("/").rpartition("/")
    if last.startswith("generate") and "/v2/models/" in path:
        return "kserve"
    two = f"{before.rpartition('/')[2]}/{last}"
    if two in _TWO_SEGMENTS:
        return _TWO_SEGMENTS[two]
    if last in _ONE_SEGMENT:
        return _ONE_SEGMENT[last]
    return "kserve" if last.endswith(":predict") else "guess"


def reads_path(path: str) -> bool:
    """Whether a dialect names ``path``. A request without a body to any other asks for nothing."""
    return name_for(path) != "guess"


@cache
def _by_default(name: str) -> FullDialect:
    return DIALECTS[name]()
