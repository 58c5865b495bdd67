"""vLLM's additions to OpenAI's requests, and its own endpoints. Owns what only vLLM reads.

``truncate_prompt_tokens`` is believed here: vLLM cuts the text of a prompt to it, but no
picture, and no embeddings that are sent ready made. Everything else is read as OpenAI's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from gpu_admission.bodies.json import JSONObject, read_object
from gpu_admission.bodies.numbers import capped, whole
from gpu_admission.types import Workload
from gpu_admission.workloads.content import VIDEO_TOKENS, Tallies, Tally
from gpu_admission.workloads.imagetokens import ImageTokensOption, Rule
from gpu_admission.workloads.openai import UNKNOWN_CONTEXT, OpenAI
from gpu_admission.workloads.rerank import Rerank
from gpu_admission.workloads.tokens import TokensOption

if TYPE_CHECKING:
    from gpu_admission.request import RequestInfo

_DEEPEST = 4
_LEAST_PIXELS_OF_A_TOKEN = 28 * 28
_MOST_TOKENS_OF_A_CROP = 1024
_MOST_CROPS = 512
"""A number above this counts pixels, not crops, patches or frames."""


class VLLM:
    """Reads requests to a vLLM server. The options are those of ``OpenAI``.

    With ``context`` (``--max-model-len``) a missing limit is what the prompt leaves of it.
    """

    __slots__ = ("_context", "_openai", "_rerank", "_tallies", "offload_bytes")

    def __init__(
        self,
        *,
        default_new_tokens: int = 1024,
        completion_new_tokens: int = 16,
        context: int | None = None,
        tokens: TokensOption = "usual",
        image_tokens: ImageTokensOption = "any",
    ) -> None:
        self._openai = OpenAI(
            default_new_tokens=default_new_tokens,
            completion_new_tokens=completion_new_tokens,
            context=context,
            tokens=tokens,
            image_tokens=image_tokens,
        )
        self._tallies = Tallies(tokens, image_tokens)
        self.offload_bytes = self._tallies.offload_bytes
        self._rerank = Rerank(tokens=tokens, image_tokens=image_tokens)
        self._context = context

    def read(self, info: RequestInfo) -> Workload:
        """The workload of ``info``. Raises ``UnreadableBody``."""
        body = read_object(info)
        tally = self._tally(body)
        if info.path.endswith(("/rerank", "/score")):
            workload = self._rerank.of(body, tally)
        else:
            workload = self._openai.of(body, info.path, tally)
        return self._with_embeds(self._truncated(workload, body.fields, tally), body.fields)

    def clamp(self, body: bytes, new_tokens: int) -> bytes:
        """``body`` with its limits at most ``new_tokens``. Raises ``UnreadableBody``."""
        return self._openai.clamp(body, new_tokens)

    def sse_error(self, message: str, code: str) -> bytes:
        """The error event that ends a stream."""
        return self._openai.sse_error(message, code)

    def _tally(self, body: JSONObject) -> Tally:
        """An empty tally, in which images cost what ``mm_processor_kwargs`` lets them cost."""
        options = body.fields.get("mm_processor_kwargs")
        if not options:
            return self._tallies(body)
        most = max(map(_most_tokens, _numbers(options)), default=0)
        usual = self._tallies.image_tokens
        rule = _at_least(usual, max(most, usual(0, 0)))
        video = max(VIDEO_TOKENS, most, self._context or UNKNOWN_CONTEXT)
        return Tally(body, self._tallies.counter, rule, video_tokens=video)

    def _truncated(self, workload: Workload, fields: Mapping[str, Any], tally: Tally) -> Workload:
        """``workload`` with its text cut to the length that the body asks for."""
        value = fields.get("truncate_prompt_tokens")
        most = 0 if value is None else whole(value, "truncate_prompt_tokens") or self._context or 0
        if not most or tally.kept:
            return workload
        most = capped(most + tally.media_tokens)
        prompt = min(workload.prompt_tokens, most)
        total = min(workload.total_prompt_tokens, capped(most * workload.sequences))
        return replace(workload, prompt_tokens=prompt, total_prompt_tokens=max(total, prompt) if total else 0)

    def _with_embeds(self, workload: Workload, fields: Mapping[str, Any]) -> Workload:
        """``workload`` with prompts that are sent as embeddings: each may fill the context."""
        embeds = fields.get("prompt_embeds")
        if embeds is None:
            return workload
        rows = max(1, len(embeds)) if type(embeds) is list else 1
        context = self._context or UNKNOWN_CONTEXT
        others = workload.total_prompt_tokens or workload.prompt_tokens
        return replace(
            workload,
            prompt_tokens=max(workload.prompt_tokens, context),
            total_prompt_tokens=capped(others + context * rows),
            sequences=capped(workload.sequences * (rows + ("prompt" in fields))),
            defaulted=(*workload.defaulted, "prompt_embeds"),
        )


def _numbers(value: Any) -> Iterator[int]:
    """The whole numbers anywhere in ``value``, down to a depth that no processor's options reach."""
    todo = [(value, 0)]
    while todo:
        each, depth = todo.pop()
        if isinstance(each, bool) or depth > _DEEPEST:
            continue
        if isinstance(each, (int, float)):
            yield whole(each, "mm_processor_kwargs")
        elif isinstance(each, (dict, list)):
            inner = each.values() if isinstance(each, dict) else each
            todo += [(item, depth + 1) for item in inner]


def _most_tokens(number: int) -> int:
    """Tokens that an image can take where one of the limits on it is ``number``."""
    if number <= _MOST_CROPS:
        return number * _MOST_TOKENS_OF_A_CROP
    return -(-number // _LEAST_PIXELS_OF_A_TOKEN)


def _at_least(rule: Rule, least: int) -> Rule:
    return lambda width, height: max(rule(width, height), least)
