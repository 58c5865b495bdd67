"""SGLang's own endpoint, ``/generate``. Owns ``text``, ``input_ids`` and ``sampling_params``.

Each of them may be a list, with one entry for each prompt of a batch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpu_admission.bodies.json import JSONObject, read_object
from gpu_admission.bodies.numbers import capped, positive, positive_option
from gpu_admission.errors import UnreadableBody
from gpu_admission.types import Workload
from gpu_admission.workloads.content import Tallies
from gpu_admission.workloads.events import sent_event
from gpu_admission.workloads.imagetokens import ImageTokensOption
from gpu_admission.workloads.limits import lower_limit, read_limit
from gpu_admission.workloads.tokens import TokensOption

if TYPE_CHECKING:
    from gpu_admission.request import RequestInfo

_LIMITS = ("max_new_tokens",)
_LISTED = re.compile(rb'"sampling_params"\s*:\s*\[')
_TEXTS = ("text", "input_ids", "input_embeds")
_MEDIA = {"image_data": "image", "audio_data": "audio", "video_data": "video"}


class SGLang:
    """Reads ``/generate`` of an SGLang server.

    ``default_new_tokens`` are taken where a body names no limit; 128 is the server's own.
    """

    __slots__ = ("_default_new_tokens", "_tally", "offload_bytes")

    def __init__(
        self,
        *,
        default_new_tokens: int = 128,
        tokens: TokensOption = "usual",
        image_tokens: ImageTokensOption = "any",
    ) -> None:
        self._default_new_tokens = positive_option(default_new_tokens, "default_new_tokens")
        self._tally = Tallies(tokens, image_tokens)
        self.offload_bytes = self._tally.offload_bytes

    def read(self, info: RequestInfo) -> Workload:
        """The workload of ``info``. Raises ``UnreadableBody``."""
        return self.of(read_object(info), info.path)

    def of(self, body: JSONObject, path: str) -> Workload:
        """The workload of a ``body`` that was sent to ``path``. Raises ``UnreadableBody``."""
        fields = body.fields
        tally = self._tally(body)
        media = sum(tally.row({key: fields[name]}) for name, key in _MEDIA.items() if fields.get(name))
        prompts = [row + media for name in _TEXTS for row in tally.rows(fields.get(name))]
        prompts = prompts or [max(1, media)]
        params = _params(fields)
        limits = [read_limit(each, _LIMITS, self._default_new_tokens) for each in params]
        longest, total = max(prompts), sum(prompts)
        return Workload(
            prompt_tokens=longest,
            total_prompt_tokens=total if total != longest else 0,
            new_tokens=max(limit for limit, _ in limits),
            sequences=capped(len(prompts) * max(positive(each, "n", 1) for each in params)),
            prompt_logprobs=_keeps_prompt_logprobs(fields),
            images=tuple(tally.images),
            audio_seconds=tally.audio_seconds,
            stream=fields.get("stream") is True,
            defaulted=_LIMITS if any(absent for _, absent in limits) else (),
        )

    def clamp(self, body: bytes, new_tokens: int) -> bytes:
        """``body`` with its limit at most ``new_tokens``; as it is where that stands in a list."""
        if _LISTED.search(body):
            return body
        return lower_limit(body, _LIMITS, new_tokens, places=(("sampling_params",),))

    def sse_error(self, message: str, code: str) -> bytes:
        """The error event that ends a stream."""
        return sent_event({"error": {"message": message, "code": code}})


def _params(fields: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The settings of each prompt, or of all; at least one."""
    params = fields.get("sampling_params")
    params = params if type(params) is list else [params]
    if any(type(each) is not dict for each in params if each is not None):
        raise UnreadableBody("sampling_params must be an object, or a list of them")
    return [each or {} for each in params] or [{}]


def _keeps_prompt_logprobs(fields: Mapping[str, Any]) -> bool:
    """Logits of the prompt are kept where logprobs are asked for from a place inside it."""
    start = fields.get("logprob_start_len")
    return bool(fields.get("return_logprob")) and start is not None and start != -1
