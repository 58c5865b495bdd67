"""OpenAI's JSON requests: chat, completions, embeddings and responses. Owns their fields.

Also those of servers that adopted the format: llama.cpp's ``/completion``, Cohere's
``/v2/embed``, pictures that are asked for in a chat. Only the limit names that an endpoint
obeys can lower its default. What only makes a request smaller (``truncate_prompt_tokens``) is
believed by the dialect of the server that does so, not here. Uploads, and pictures to be made,
are in ``openaimedia``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from gpu_admission.bodies.json import JSONObject, read_object
from gpu_admission.bodies.numbers import capped, positive, positive_option, whole
from gpu_admission.types import Workload
from gpu_admission.workloads.anycase import spellings
from gpu_admission.workloads.content import MESSAGE_TOKENS, TEMPLATE_TOKENS, Tallies, Tally
from gpu_admission.workloads.embedinputs import embed_rows
from gpu_admission.workloads.events import sent_event
from gpu_admission.workloads.imagetokens import ImageTokensOption
from gpu_admission.workloads.limits import lower_limit, read_limit
from gpu_admission.workloads.members import model_in
from gpu_admission.workloads.outputsizes import FPS, read_made
from gpu_admission.workloads.outputsizes import NAMES as _MADE
from gpu_admission.workloads.plainchat import PlainChat, plain_chat
from gpu_admission.workloads.promptrows import is_template, prompt_rows
from gpu_admission.workloads.readings import largest
from gpu_admission.workloads.tokens import TokensOption

if TYPE_CHECKING:
    from gpu_admission.request import RequestInfo

UNKNOWN_CONTEXT = 131_072
"""Tokens charged for history that the server keeps, where no ``context`` was given."""

_CHAT = ("max_tokens", "max_completion_tokens")
_COMPLETIONS = ("max_tokens",)
_RESPONSES = ("max_output_tokens",)
_LLAMA_CPP = ("n_predict", "max_tokens")
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict")
_OTHERS: Mapping[tuple[str, ...], tuple[str, ...]] = {
    names: tuple(name for name in _LIMITS if name not in names)
    for names in (_CHAT, _COMPLETIONS, _RESPONSES, _LLAMA_CPP)
}
_NOTHING: tuple[str, ...] = ()
_NO_OUTPUT = frozenset(
    {
        "embeddings", "embedding", "embed", "pooling", "classify", "tokenize", "detokenize",
        "count_tokens", "apply-template",
    }
)  # fmt: skip
_OBEYED = {"responses": _RESPONSES, "completion": _LLAMA_CPP, "infill": _LLAMA_CPP}
_TOOL_TOKENS = 200
_AS_TEXT = frozenset(
    {
        "system", "instructions", "suffix", "chat_template", "chat_template_kwargs", "prediction",
        "input_prefix", "input_suffix", "input_extra",
    }
)  # fmt: skip
_AS_JSON = frozenset({"tools", "functions", "documents"})
_HISTORY = frozenset({"previous_response_id", "conversation"})
_BESIDE = _AS_TEXT | _AS_JSON | _HISTORY | {"prompt", "image_data"}
_CHOICES = frozenset({"n", "best_of", "num_beams"})
_LOGPROBS = frozenset({"echo", "prompt_logprobs"})
_RARE = _BESIDE | _CHOICES | _LOGPROBS | _MADE | {"background"}
"""Fields that most requests lack: a single look rules all of them out."""


class OpenAI:
    """Reads chat, completions, embeddings and responses; by the fields that are there.

    ``default_new_tokens`` are taken where a body names no limit (with ``context``: what that
    leaves beside the prompt), ``completion_new_tokens`` for a text completion. ``tokens`` is
    ``"usual"``, ``"bound"`` or a tokenizer, ``image_tokens`` a family's name, a
    number or a function of width and height.
    """

    __slots__ = ("_completion_new_tokens", "_context", "_default_new_tokens", "_tally", "offload_bytes")

    def __init__(
        self,
        *,
        default_new_tokens: int = 1024,
        completion_new_tokens: int = 16,
        context: int | None = None,
        tokens: TokensOption = "usual",
        image_tokens: ImageTokensOption = "any",
    ) -> None:
        self._default_new_tokens = positive_option(default_new_tokens, "default_new_tokens")
        self._completion_new_tokens = positive_option(completion_new_tokens, "completion_new_tokens")
        self._context = None if context is None else positive_option(context, "context")
        self._tally = Tallies(tokens, image_tokens)
        self.offload_bytes = self._tally.offload_bytes

    def read(self, info: RequestInfo) -> Workload:
        """The workload of ``info``. Raises ``UnreadableBody``."""
        if info.path.endswith("/chat/completions"):
            chat = plain_chat(info)
            if chat is not None and (workload := self._plain(chat, info)) is not None:
                return workload
        return largest(spellings(read_object(info)), partial(self.of, path=info.path))

    def _plain(self, chat: PlainChat, info: RequestInfo) -> Workload | None:
        """What ``of`` returns, in fewer steps; ``None`` if there is not one limit."""
        limit, other = chat.max_tokens, chat.max_completion_tokens
        if (limit is None) is (other is None):
            return None
        texts = [message.content for message in chat.messages]
        counted = self._tally.counter.texts(JSONObject({}, len(info.body)), texts)
        return Workload(
            prompt_tokens=TEMPLATE_TOKENS + MESSAGE_TOKENS * len(texts) + counted,
            new_tokens=limit or other or 0,
            model=chat.model if type(chat.model) is str else None,
            stream=chat.stream is True,
        )

    def of(self, body: JSONObject, path: str, tally: Tally | None = None) -> Workload:
        """The workload of a ``body`` that was sent to ``path``. Raises ``UnreadableBody``.

        ``tally`` is an empty one of the caller's, which is left with what it has added up.
        """
        fields = body.fields
        embeds = path[path.rfind("/") + 1 :] in _NO_OUTPUT
        tally = self._tally(body) if tally is None else tally
        is_plain = fields.keys().isdisjoint(_RARE)
        kept_elsewhere = _NOTHING if is_plain else _add_extras(fields, tally)
        prompts = _prompts(tally, embeds)
        longest = total = prompts[0]
        if len(prompts) > 1:
            longest, total = max(prompts), sum(prompts)
        if tally.kept:
            kept_elsewhere += tuple(dict.fromkeys(tally.kept))
        if kept_elsewhere:
            longest = total = max(total, self._context or UNKNOWN_CONTEXT)
        new, absent = (0, _NOTHING) if embeds else self._new_tokens(fields, path, longest)
        choices, beams = (1, 1) if is_plain else _choices(fields)
        workload = Workload(
            task="embed" if embeds else "generate",
            prompt_tokens=longest,
            total_prompt_tokens=total if total != longest else 0,
            new_tokens=new,
            sequences=1 if is_plain and len(prompts) == 1 else capped(len(prompts) * choices),
            beams=beams,
            prompt_logprobs=not is_plain and _keeps_prompt_logprobs(fields),
            images=tuple(tally.images),
            audio_seconds=tally.audio_seconds,
            model=model_in(fields),
            stream=fields.get("stream") is True,
            defaulted=kept_elsewhere + absent,
        )
        return workload if is_plain else _with_made(workload, fields, len(prompts))

    def clamp(self, body: bytes, new_tokens: int) -> bytes:
        """``body`` with its limits at most ``new_tokens``. Raises ``UnreadableBody``."""
        responses = b'"input"' in body and b'"messages"' not in body
        return lower_limit(body, _RESPONSES if responses else _CHAT, new_tokens, others=_LIMITS)

    def sse_error(self, message: str, code: str) -> bytes:
        """The error event that ends a stream, as OpenAI's clients read it."""
        error = {"message": message, "type": "server_error", "param": None, "code": code}
        return sent_event({"error": error}) + b"data: [DONE]\n\n"

    def _new_tokens(self, fields: Mapping[str, Any], path: str, prompt: int) -> tuple[int, tuple[str, ...]]:
        """The most new tokens of a sequence, and the name of the limit if a default was used."""
        names = _obeyed(fields, path)
        default = self._default_new_tokens if self._context is None else max(1, self._context - prompt)
        if names is _COMPLETIONS and fields.keys().isdisjoint(names):
            default = self._completion_new_tokens
        new, absent = read_limit(fields, names, default, _OTHERS[names])
        if "min_tokens" in fields:
            new = max(new, whole(fields["min_tokens"], "min_tokens"))
        return new, (names[0],) if absent else _NOTHING


def _prompts(tally: Tally, embeds: bool) -> list[int]:
    """Tokens of each prompt (at least one). What is not a list of prompts adds to each."""
    fields = tally.body.fields
    prompts: list[int] = []
    if "messages" in fields:
        tally.tokens += TEMPLATE_TOKENS
        messages = fields["messages"]
        if type(messages) is list and messages and type(messages[0]) is list:
            prompts += [tally.conversation(conversation) for conversation in messages]
        else:
            tally.messages(messages)
    if "prompt" in fields:
        prompts += prompt_rows(tally, fields["prompt"])
    if embeds:
        prompts += embed_rows(tally)
    elif "input" in fields:
        prompts += _input(tally, fields["input"])
    if not prompts:
        return [tally.tokens or 1]
    return [tally.tokens + tokens or 1 for tokens in prompts]


def _input(tally: Tally, input: Any) -> list[int]:
    """Rows of ``input``; items of a conversation are added to ``tally`` instead."""
    tally.tokens += TEMPLATE_TOKENS
    if not _is_items(input):
        return tally.rows(input)
    tally.messages(input)
    return []


def _obeyed(fields: Mapping[str, Any], path: str) -> tuple[str, ...]:
    """The names of the limit that an endpoint obeys; by the fields, where its path does not say."""
    last = path[path.rfind("/") + 1 :]
    if last == "completions":
        if path.endswith("/chat/completions"):
            return _CHAT
        return _LLAMA_CPP if path == "/completions" else _COMPLETIONS
    if last in _OBEYED:
        return _OBEYED[last]
    if "messages" in fields:
        return _CHAT
    if "input" in fields:
        return _RESPONSES
    return _COMPLETIONS if "prompt" in fields else _CHAT


def _with_made(workload: Workload, fields: Mapping[str, Any], prompts: int) -> Workload:
    """``workload`` with the picture or video that is asked for; marked where it outlives its request."""
    made = read_made((fields,), fps=FPS)
    features = {"frames": float(made.frames)} if made.frames else {}
    if fields.get("background"):
        features["background"] = 1.0
    return replace(
        workload,
        sequences=max(workload.sequences, capped(prompts * made.copies)),
        width=made.width,
        height=made.height,
        frames=made.frames,
        features=features,
    )


def _add_extras(fields: Mapping[str, Any], tally: Tally) -> tuple[str, ...]:
    """Charges what else the server writes into the prompt; names what the server itself keeps."""
    kept_elsewhere = _NOTHING
    for name, value in fields.items():
        if name in _AS_TEXT:
            tally.content(value)
        elif name == "image_data" and value:
            tally.image(value)
        elif name in _AS_JSON and value:
            tally.text(value)
            tally.tokens += _TOOL_TOKENS
        elif (name in _HISTORY and value is not None) or (name == "prompt" and is_template(value)):
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
    """Whether logits of every prompt position are kept; ``logprobs: 0`` asks for some, ``false`` for none."""
    if fields.get("echo") and (logprobs := fields.get("logprobs")) is not None and logprobs is not False:
        return True
    return fields.get("prompt_logprobs") is not None


def _is_items(input: Any) -> bool:
    return type(input) is list and any(type(item) is dict for item in input)
