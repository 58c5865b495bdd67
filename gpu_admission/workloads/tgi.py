"""Text Generation Inference: generate, with and without a stream. Owns ``inputs`` and ``parameters``.

Its chat endpoint takes OpenAI's requests. Pictures stand in the text as markdown links; they
are taken as such only where ``image_tokens`` says that the model sees pictures, since any
other model reads the link's characters.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpu_admission.bodies.json import JSONObject, read_object
from gpu_admission.bodies.numbers import capped, positive, positive_option, whole
from gpu_admission.types import Workload
from gpu_admission.workloads.content import Tallies, Tally
from gpu_admission.workloads.events import sent_event
from gpu_admission.workloads.imagetokens import ImageTokensOption
from gpu_admission.workloads.limits import lower_limit, read_limit
from gpu_admission.workloads.members import settings_in
from gpu_admission.workloads.openai import OpenAI
from gpu_admission.workloads.tokens import TokensOption

if TYPE_CHECKING:
    from gpu_admission.request import RequestInfo

_LIMITS = ("max_new_tokens",)
_OTHERS = ("max_tokens", "max_length")
_PICTURE = re.compile(r"!\[[^\]\[]{0,200}\]\((?=data:image/|https?://)")


class TGI:
    """Reads ``/generate``, ``/generate_stream``, ``/`` and, as ``OpenAI``, chat.

    ``default_new_tokens`` are taken where a body names no limit; with ``context``
    (``--max-total-tokens``) what the prompt leaves of it.
    """

    __slots__ = ("_context", "_default_new_tokens", "_openai", "_sees_pictures", "_tally", "offload_bytes")

    def __init__(
        self,
        *,
        default_new_tokens: int = 1024,
        context: int | None = None,
        tokens: TokensOption = "usual",
        image_tokens: ImageTokensOption | None = None,
    ) -> None:
        self._default_new_tokens = positive_option(default_new_tokens, "default_new_tokens")
        self._context = None if context is None else positive_option(context, "context")
        self._sees_pictures = image_tokens is not None
        image_tokens = "any" if image_tokens is None else image_tokens
        self._tally = Tallies(tokens, image_tokens)
        self.offload_bytes = self._tally.offload_bytes
        self._openai = OpenAI(
            default_new_tokens=default_new_tokens, context=context, tokens=tokens, image_tokens=image_tokens
        )

    def read(self, info: RequestInfo) -> Workload:
        """The workload of ``info``. Raises ``UnreadableBody``."""
        return self.of(read_object(info), info.path)

    def of(self, body: JSONObject, path: str) -> Workload:
        """The workload of a ``body`` that was sent to ``path``. Raises ``UnreadableBody``."""
        if "inputs" not in body.fields:
            return self._openai.of(body, path)
        parameters = settings_in(body.fields, "parameters")
        tally, prompts = self._prompts(body)
        longest, total = max(prompts), sum(prompts)
        longest = min(longest, whole(parameters.get("truncate"), "truncate") or longest)
        default = self._default_new_tokens if self._context is None else max(1, self._context - longest)
        new, absent = read_limit(parameters, _LIMITS, default, _OTHERS)
        choices = max(
            positive(parameters, name, 1) for name in ("best_of", "num_return_sequences", "num_beams")
        )
        return Workload(
            prompt_tokens=longest,
            total_prompt_tokens=total if len(prompts) > 1 else 0,
            new_tokens=0 if path.endswith("/tokenize") else new,
            sequences=capped(choices * len(prompts)),
            beams=positive(parameters, "num_beams", 1),
            prompt_logprobs=bool(parameters.get("decoder_input_details")),
            images=tuple(tally.images),
            stream=body.fields.get("stream") is True or path.endswith("_stream"),
            defaulted=("max_new_tokens",) if absent else (),
        )

    def clamp(self, body: bytes, new_tokens: int) -> bytes:
        """``body`` with its limits at most ``new_tokens``. Raises ``UnreadableBody``."""
        if b'"messages"' in body:
            return self._openai.clamp(body, new_tokens)
        return lower_limit(body, _LIMITS, new_tokens, places=(("parameters",),), others=_OTHERS)

    def sse_error(self, message: str, code: str) -> bytes:
        """The error event that ends a stream."""
        return sent_event({"error": message, "error_type": code})

    def _prompts(self, body: JSONObject) -> tuple[Tally, list[int]]:
        """Tokens of each prompt (at least one), and what their pictures add up to."""
        tally = self._tally(body)
        inputs = body.fields["inputs"]
        if self._sees_pictures and type(inputs) is str:
            inputs, links = _without_pictures(body.whole(inputs))
            tally.image(links)
        return tally, [tally.tokens + tokens for tokens in tally.rows(inputs)] or [1]


def _without_pictures(text: str) -> tuple[str, list[str]]:
    """``text`` without its picture links, and where these lead."""
    texts: list[str] = []
    links: list[str] = []
    done = 0
    for opening in _PICTURE.finditer(text):
        closing = text.find(")", opening.end())
        if closing < 0:
            break
        if opening.start() >= done:
            texts.append(text[done : opening.start()])
            links.append(text[opening.end() : closing])
            done = closing + 1
    return "".join([*texts, text[done:]]), links
