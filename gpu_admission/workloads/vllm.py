"""vLLM's additions to OpenAI's requests, and its own endpoints. Owns what only vLLM reads.

``truncate_prompt_tokens`` is believed here: vLLM cuts the prompt to it. Everything else is
read as OpenAI's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from gpu_admission.bodies.json import read_object
from gpu_admission.bodies.numbers import capped, whole
from gpu_admission.types import Workload
from gpu_admission.workloads.imagetokens import ImageTokensOption, rule_of
from gpu_admission.workloads.openai import UNKNOWN_CONTEXT, OpenAI
from gpu_admission.workloads.rerank import Rerank
from gpu_admission.workloads.tokens import TokensOption

if TYPE_CHECKING:
    from gpu_admission.request import RequestInfo

_LEAST_PIXELS_OF_A_TOKEN = 28 * 28


class VLLM:
    """Reads requests to a vLLM server. The options are those of ``OpenAI``.

    With ``context`` (``--max-model-len``) a missing limit is what the prompt leaves of it.
    """

    __slots__ = ("_context", "_image_tokens", "_openai", "_rerank", "offload_bytes")

    def __init__(
        self,
        *,
        default_new_tokens: int = 1024,
        completion_new_tokens: int = 16,
        context: int | None = None,
        tokens: TokensOption = "safe",
        image_tokens: ImageTokensOption = "any",
    ) -> None:
        self._openai = OpenAI(
            default_new_tokens=default_new_tokens,
            completion_new_tokens=completion_new_tokens,
            context=context,
            tokens=tokens,
            image_tokens=image_tokens,
        )
        self.offload_bytes = self._openai.offload_bytes
        self._rerank = Rerank(tokens=tokens, image_tokens=image_tokens)
        self._context = context
        self._image_tokens = rule_of(image_tokens)

    def read(self, info: RequestInfo) -> Workload:
        """The workload of ``info``. Raises ``UnreadableBody``."""
        body = read_object(info)
        if info.path.endswith(("/rerank", "/score")):
            workload = self._rerank.of(body)
        else:
            workload = self._openai.of(body, info.path)
        return self._with_extras(workload, body.fields)

    def clamp(self, body: bytes, new_tokens: int) -> bytes:
        """``body`` with its limits at most ``new_tokens``. Raises ``UnreadableBody``."""
        return self._openai.clamp(body, new_tokens)

    def sse_error(self, message: str, code: str) -> bytes:
        """The error event that ends a stream."""
        return self._openai.sse_error(message, code)

    def _with_extras(self, workload: Workload, fields: Mapping[str, Any]) -> Workload:
        prompt, total = workload.prompt_tokens, workload.total_prompt_tokens
        defaulted = workload.defaulted
        if fields.get("mm_processor_kwargs"):
            prompt += len(workload.images) * self._image_cap(fields["mm_processor_kwargs"])
        if fields.get("prompt_embeds") is not None:
            prompt = max(prompt, self._context or UNKNOWN_CONTEXT)
            defaulted += ("prompt_embeds",)
        if most := self._truncation(fields):
            prompt, total = min(prompt, most), min(total, most * workload.sequences)
        if (prompt, total) == (workload.prompt_tokens, workload.total_prompt_tokens):
            return workload
        return replace(
            workload,
            prompt_tokens=capped(prompt),
            total_prompt_tokens=capped(max(total, prompt)) if total else 0,
            defaulted=defaulted,
        )

    def _image_cap(self, options: Any) -> int:
        """Tokens of an image whose limits the request sets itself."""
        most = self._image_tokens(0, 0)
        if type(options) is dict:
            pixels = max(whole(options.get(name), name) for name in ("min_pixels", "max_pixels"))
            most = max(most, -(-pixels // _LEAST_PIXELS_OF_A_TOKEN))
        return most

    def _truncation(self, fields: Mapping[str, Any]) -> int:
        """Tokens that the prompt is cut to; 0 where it is not. A negative number is the context."""
        value = fields.get("truncate_prompt_tokens")
        if value is None:
            return 0
        return whole(value, "truncate_prompt_tokens") or self._context or 0
