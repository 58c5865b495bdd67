"""Anthropic's messages, as Anthropic, vLLM, llama.cpp and Ollama serve them. Owns its error event.

Blocks are read as parts of a chat are: ``content`` knows what a ``source`` is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_admission.types import Workload
from gpu_admission.workloads.events import sent_event
from gpu_admission.workloads.imagetokens import ImageTokensOption
from gpu_admission.workloads.limits import lower_limit
from gpu_admission.workloads.openai import OpenAI
from gpu_admission.workloads.tokens import TokensOption

if TYPE_CHECKING:
    from gpu_admission.request import RequestInfo

_LIMITS = ("max_tokens",)


class Anthropic:
    """Reads ``/v1/messages`` and ``/v1/messages/count_tokens``. The options are those of ``OpenAI``."""

    __slots__ = ("_openai", "offload_bytes")

    def __init__(
        self,
        *,
        default_new_tokens: int = 1024,
        context: int | None = None,
        tokens: TokensOption = "usual",
        image_tokens: ImageTokensOption = "any",
    ) -> None:
        self._openai = OpenAI(
            default_new_tokens=default_new_tokens, context=context, tokens=tokens, image_tokens=image_tokens
        )
        self.offload_bytes = self._openai.offload_bytes

    def read(self, info: RequestInfo) -> Workload:
        """The workload of ``info``. Raises ``UnreadableBody``."""
        return self._openai.read(info)

    def clamp(self, body: bytes, new_tokens: int) -> bytes:
        """``body`` with its limit at most ``new_tokens``. Raises ``UnreadableBody``."""
        return lower_limit(body, _LIMITS, new_tokens)

    def sse_error(self, message: str, code: str) -> bytes:
        """The error event that ends a stream, as Anthropic's clients read it."""
        return sent_event({"type": "error", "error": {"type": code, "message": message}}, event="error")
