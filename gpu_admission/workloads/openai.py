"""OpenAI's JSON requests: chat, completions, embeddings and responses. Owns their fields.

Every limit that a body names counts, and the largest wins, since servers differ in which
they obey. What only makes a request smaller (``truncate_prompt_tokens``) is believed by
the dialect of the server that does so, not here. Uploads and pictures that are made are in
``openaimedia``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpu_admission.bodies.json import JSONObject, read_object
from gpu_admission.bodies.numbers import capped, positive, positive_option, whole
from gpu_admission.types import Workload
from gpu_admission.workloads.content import TEMPLATE_TOKENS, Tally
from gpu_admission.workloads.events import sent_event
from gpu_admission.workloads.imagetokens import ImageTokensOption, rule_of
from gpu_admission.workloads.limits import lower_limit, read_limit
from gpu_admission.workloads.tokens import TokensOption, counter, rows

if TYPE_CHECKING:
    from gpu_admission.request import RequestInfo

UNKNOWN_CONTEXT = 131_072
"""Tokens charged for history that the server keeps, where no ``context`` was given."""

_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict")
_RESPONSE_LIMITS = ("max_output_tokens", *_LIMITS)
_NOTHING: tuple[str, ...] = ()
_NO_OUTPUT = ("/embeddings", "/pooling", "/classify", "/tokenize")
_TOOL_TOKENS = 200
_AS_TEXT = frozenset(
    {"system", "instructions", "suffix", "chat_template", "chat_template_kwargs", "prediction"}
)
_AS_JSON = frozenset({"tools", "functions", "documents"})
_HISTORY = frozenset({"previous_response_id", "conversation"})
_BESIDE = _AS_TEXT | _AS_JSON | _HISTORY | {"prompt"}
_CHOICES = frozenset({"n", "best_of", "num_beams"})
_LOGPROBS = frozenset({"echo", "prompt_logprobs"})
_RARE = _BESIDE | _CHOICES | _LOGPROBS
"""Fields that most requests have none of: one look tells it of them all."""


class OpenAI:
    """Reads chat, completions, embeddings and responses; by the fields that are there.

    ``default_new_tokens`` are taken where a body names no limit (with ``context``: what that
    leaves beside the prompt), ``completion_new_tokens`` for a text completion. ``tokens`` is
    ``"expected"``, ``"safe"``, ``"bound"`` or a tokenizer, ``image_tokens`` a family's name, a
    number or a function of width and height.
    """

    __slots__ = (
        "_completion_new_tokens",
        "_context",
        "_counter",
        "_default_new_tokens",
        "_image_tokens",
        "offload_bytes",
    )

    def __init__(
        self,
        *,
        default_new_tokens: int = 1024,
        completion_new_tokens: int = 16,
        context: int | None = None,
        tokens: TokensOption = "safe",
        image_tokens: ImageTokensOption = "any",
    ) -> None:
        self._default_new_tokens = positive_option(default_new_tokens, "default_new_tokens")
        self._completion_new_tokens = positive_option(completion_new_tokens, "completion_new_tokens")
        self._context = None if context is None else positive_option(context, "context")
        self._counter = counter(tokens)
        self.offload_bytes = self._counter.offload_bytes
        self._image_tokens = rule_of(image_tokens)

    def read(self, info: RequestInfo) -> Workload:
        """The workload of ``info``. Raises ``UnreadableBody``."""
        return self.of(read_object(info), info.path)

    def of(self, body: JSONObject, path: str) -> Workload:
        """The workload of a ``body`` that was sent to ``path``. Raises ``UnreadableBody``."""
        fields = body.fields
        embeds = path.endswith(_NO_OUTPUT)
        tally = Tally(body, self._counter, self._image_tokens)
        is_plain = fields.keys().isdisjoint(_RARE)
        kept_elsewhere = _NOTHING if is_plain else _add_extras(fields, tally)
        prompts = self._prompts(body, tally, embeds)
        longest = total = prompts[0]
        if len(prompts) > 1:
            longest, total = max(prompts), sum(prompts)
        if kept_elsewhere:
            longest = total = max(total, self._context or UNKNOWN_CONTEXT)
        new, absent = (0, _NOTHING) if embeds else self._new_tokens(fields, longest)
        choices, beams = (1, 1) if is_plain else _choices(fields)
        model = fields.get("model")
        return Workload(
            task="embed" if embeds else "generate",
            prompt_tokens=longest,
            total_prompt_tokens=total if total != longest else 0,
            new_tokens=new,
            sequences=capped(len(prompts) * choices),
            beams=beams,
            prompt_logprobs=not is_plain and _keeps_prompt_logprobs(fields),
            images=tuple(tally.images),
            audio_seconds=tally.audio_seconds,
            model=model if type(model) is str else None,
            stream=fields.get("stream") is True,
            defaulted=kept_elsewhere + absent,
        )

    def clamp(self, body: bytes, new_tokens: int) -> bytes:
        """``body`` with its limits at most ``new_tokens``. Raises ``UnreadableBody``."""
        responses = b'"input"' in body and b'"messages"' not in body
        return lower_limit(body, _RESPONSE_LIMITS if responses else _LIMITS, new_tokens)

    def sse_error(self, message: str, code: str) -> bytes:
        """The error event that ends a stream, as OpenAI's clients read it."""
        error = {"message": message, "type": "server_error", "param": None, "code": code}
        return sent_event({"error": error}) + b"data: [DONE]\n\n"

    def _prompts(self, body: JSONObject, tally: Tally, embeds: bool) -> list[int]:
        """Tokens of each prompt (at least one). What is not a list of prompts adds to each."""
        fields = body.fields
        if "messages" in fields:
            tally.tokens += TEMPLATE_TOKENS
            tally.messages(fields["messages"])
        prompts = rows(body, self._counter, fields["prompt"]) if "prompt" in fields else []
        if "input" in fields:
            prompts += self._input(body, tally, fields["input"], embeds)
        if not prompts:
            return [tally.tokens or 1]
        return [tally.tokens + tokens for tokens in prompts]

    def _input(self, body: JSONObject, tally: Tally, input: Any, embeds: bool) -> list[int]:
        """Rows of ``input``; items of a conversation are added to ``tally`` instead."""
        if embeds:
            return rows(body, self._counter, input)
        tally.tokens += TEMPLATE_TOKENS
        if not _is_items(input):
            return rows(body, self._counter, input)
        tally.messages(input)
        return []

    def _new_tokens(self, fields: Mapping[str, Any], prompt: int) -> tuple[int, tuple[str, ...]]:
        """The most new tokens of a sequence, and the name of the limit where a default was taken."""
        if "messages" not in fields and "prompt" in fields and fields.keys().isdisjoint(_LIMITS):
            new, absent = self._completion_new_tokens, True
        else:
            new, absent = read_limit(fields, _LIMITS, self._default(prompt))
        if "min_tokens" in fields:
            new = max(new, whole(fields["min_tokens"], "min_tokens"))
        if not absent:
            return new, _NOTHING
        return new, ("max_output_tokens" if "input" in fields else "max_tokens",)

    def _default(self, prompt: int) -> int:
        return self._default_new_tokens if self._context is None else max(1, self._context - prompt)


def _add_extras(fields: Mapping[str, Any], tally: Tally) -> tuple[str, ...]:
    """Charges what is written into the prompt beside it; names what the server keeps of it."""
    kept_elsewhere = _NOTHING
    for name, value in fields.items():
        if name in _AS_TEXT:
            tally.content(value)
        elif name in _AS_JSON and value:
            tally.text(value)
            tally.tokens += _TOOL_TOKENS
        elif (name in _HISTORY and value is not None) or (name == "prompt" and type(value) is dict):
            kept_elsewhere += (name,)
    return kept_elsewhere


def _choices(fields: Mapping[str, Any]) -> tuple[int, int]:
    """How many sequences each prompt becomes, and how wide the beams among them are."""
    choices = max(positive(fields, "n", 1), positive(fields, "best_of", 1))
    beams = positive(fields, "num_beams", 1)
    if fields.get("use_beam_search"):
        return capped(choices * beams), capped(max(choices, beams))
    return capped(choices * beams), beams


def _keeps_prompt_logprobs(fields: Mapping[str, Any]) -> bool:
    """Whether logits of every prompt position are kept; zero logprobs are some, ``false`` is none."""
    if fields.get("echo") and (logprobs := fields.get("logprobs")) is not None and logprobs is not False:
        return True
    return fields.get("prompt_logprobs") is not None


def _is_items(input: Any) -> bool:
    return type(input) is list and any(type(item) is dict for item in input)
