"""Ollama: generate, chat and embed. Owns its fields, and how a Go server reads JSON.

Go accepts a field's name in any case, and merges an object that is written twice: a reader
that did not would miss options that count. The names of options are case-sensitive.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from gpu_admission.bodies.json import read_object
from gpu_admission.bodies.numbers import positive_option, whole
from gpu_admission.types import Workload
from gpu_admission.workloads.content import TEMPLATE_TOKENS, Tallies, Tally
from gpu_admission.workloads.imagetokens import ImageTokensOption
from gpu_admission.workloads.limits import lower_limit
from gpu_admission.workloads.members import listed, model_in, settings_in
from gpu_admission.workloads.openai import OpenAI
from gpu_admission.workloads.tokens import TokensOption

if TYPE_CHECKING:
    from gpu_admission.request import RequestInfo

_TEXTS = ("system", "template", "suffix", "tools")
_SILENT = ("/show", "/pull", "/push", "/create", "/copy", "/delete")
_TOOL_TOKENS = 200
_FOLDED_DEPTH = 8


class Ollama:
    """Reads ``/api/generate``, ``/api/chat``, ``/api/embed`` and, as ``OpenAI``, ``/v1``.

    ``context`` is what the server loads where a body names no ``num_ctx``. Prompt and output
    share the context: neither grows beyond it. Without either, a body that names no
    ``num_predict`` gets ``default_new_tokens``.
    """

    __slots__ = ("_context", "_default_new_tokens", "_openai", "_tally", "offload_bytes")

    def __init__(
        self,
        *,
        default_new_tokens: int = 1024,
        context: int | None = None,
        tokens: TokensOption = "usual",
        image_tokens: ImageTokensOption = "any",
    ) -> None:
        self._default_new_tokens = positive_option(default_new_tokens, "default_new_tokens")
        self._context = None if context is None else positive_option(context, "context")
        self._tally = Tallies(tokens, image_tokens)
        self.offload_bytes = self._tally.offload_bytes
        self._openai = OpenAI(
            default_new_tokens=default_new_tokens, context=context, tokens=tokens, image_tokens=image_tokens
        )

    def read(self, info: RequestInfo) -> Workload:
        """The workload of ``info``. Raises ``UnreadableBody``."""
        body = read_object(info, repeats=_joined)
        if "/v1/" in info.path:
            body.fields = _in_any_case(body.fields, _FOLDED_DEPTH)
            return self._openai.of(body, info.path)
        body.fields = fields = _any_case(body.fields)
        options = settings_in(fields, "options")
        embeds = "/embed" in info.path
        tally = self._tally(body)
        prompts = _prompts(tally, embeds)
        context = whole(options.get("num_ctx"), "num_ctx")
        limit = context or self._context
        if limit is not None:
            prompts = [min(tokens, limit) for tokens in prompts]
        is_silent = embeds or info.path.endswith(_SILENT)
        new, absent = (0, False) if is_silent else self._new_tokens(options, max(prompts), limit)
        return Workload(
            task="embed" if embeds else "generate",
            prompt_tokens=max(prompts),
            total_prompt_tokens=sum(prompts) if len(prompts) > 1 else 0,
            new_tokens=new,
            sequences=len(prompts),
            images=tuple(tally.images),
            context=context,
            model=model_in(fields),
            stream=not embeds and fields.get("stream") is not False,
            defaulted=("num_predict",) if absent else (),
        )

    def clamp(self, body: bytes, new_tokens: int) -> bytes:
        """``body`` with its limit at most ``new_tokens``. Raises ``UnreadableBody``."""
        if b'"options"' not in body and b'"max_tokens"' in body:
            return self._openai.clamp(body, new_tokens)
        return lower_limit(body, ("num_predict",), new_tokens, places=(("options",),))

    def sse_error(self, message: str, code: str) -> bytes:
        """The line that ends a stream: Ollama sends lines of JSON, not events."""
        return msgspec.json.encode({"error": message}) + b"\n"

    def _new_tokens(self, options: Mapping[str, Any], prompt: int, limit: int | None) -> tuple[int, bool]:
        """The most new tokens, and whether the body left it out; no limit (-1, -2) fills the context."""
        said = whole(options.get("num_predict"), "num_predict")
        if limit is None:
            return said or self._default_new_tokens, not said
        room = max(1, limit - prompt)
        return min(said or room, room), not said


def _prompts(tally: Tally, embeds: bool) -> list[int]:
    """Tokens of each prompt (at least one). What is not a list of prompts adds to each."""
    fields = tally.body.fields
    if embeds:
        found = (fields[name] for name in ("input", "prompt") if name in fields)
        return [row for value in found for row in tally.rows(value)] or [1]
    tally.tokens += TEMPLATE_TOKENS + _TOOL_TOKENS * bool(fields.get("tools"))
    for name in _TEXTS:
        tally.text(fields.get(name))
    if fields.get("images") is not None:
        tally.image(fields["images"])
    messages = listed(fields.get("messages"))
    tally.messages([_any_case(message) if type(message) is dict else message for message in messages])
    earlier = sum(tally.rows(fields.get("context")))
    return [tally.tokens + earlier + sum(tally.rows(fields.get("prompt")))]


def _folded(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    return _joined((name.casefold(), value) for name, value in pairs)


def _in_any_case(value: Any, depth: int) -> Any:
    """``value`` with all names in lower case, down to ``depth``, below which no limit stands."""
    if not depth:
        return value
    if type(value) is dict:
        return _folded((name, _in_any_case(each, depth - 1)) for name, each in value.items())
    if type(value) is list:
        return [_in_any_case(each, depth - 1) for each in value]
    return value


def _any_case(fields: Mapping[str, Any]) -> dict[str, Any]:
    """``fields`` by their names in small letters; of several spellings the last counts."""
    return _folded(fields.items())


def _joined(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """An object in the order of each name's last value, with repeated objects and lists joined."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        earlier = found.pop(name, None)
        if type(earlier) is dict and type(value) is dict:
            earlier.update(value)
            value = earlier
        elif type(earlier) is list and type(value) is list:
            earlier += value
            value = earlier
        found[name] = value
    return found
