"""What a request asks for: bodies of well-known APIs, read into a ``Workload``.

One dialect a file. Each has ``read(info)``, which raises ``UnreadableBody`` and nothing
else; ``clamp(body, new_tokens)``, which lowers the limit on new tokens in a body; and
``sse_error(message, code)``, the last event of a stream that fails. None executes, fetches
or opens anything. A dialect is chosen by the end of a request's path, by name, or given as
an object. How much memory a workload takes is in ``estimators``.
"""

from __future__ import annotations

from gpu_admission.workloads.anthropic import Anthropic
from gpu_admission.workloads.choice import choose, dialect, dialect_for, names, reads_path
from gpu_admission.workloads.comfyui import ComfyUI
from gpu_admission.workloads.control import CONTROL_PATHS, is_control
from gpu_admission.workloads.fields import Fields
from gpu_admission.workloads.guess import Guess
from gpu_admission.workloads.kserve import KServe
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

__all__ = [
    "CONTROL_PATHS",
    "TEI",
    "TGI",
    "VLLM",
    "Anthropic",
    "ComfyUI",
    "Fields",
    "Guess",
    "KServe",
    "Ollama",
    "OpenAI",
    "OpenAIMedia",
    "Rerank",
    "SGLang",
    "StableDiffusion",
    "Whisper",
    "choose",
    "dialect",
    "dialect_for",
    "is_control",
    "names",
    "reads_path",
]
