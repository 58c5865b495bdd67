"""The usage that an answer reports: its token counts, under the names of each API.

Owns those names, and where in an answer they are believed: at the top of its last JSON object, which
the server writes. What a model says is a string in there, or an object further inside, and counts for
nothing. How answers pass through is in ``http``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

import msgspec

from gpu_admission.types import Usage, Workload

TAIL_BYTES: Final = 64 * 1024
"""Bytes of an answer's end that are looked at."""
HEAD_BYTES: Final = 8 * 1024
"""Bytes of a stream's beginning that are looked at: Anthropic's reports the prompt there."""
KINDS: Final = {
    b"application/json": "json",
    b"text/event-stream": "events",
    b"application/x-ndjson": "lines",
    b"application/jsonl": "lines",
}
"""Content types that are read."""
_EVENTS = 8
"""Events at a stream's end that are looked at; the counts are in the last, or before a closing event."""
_TRIES = 4
_SHORT = 4096
"""An answer of up to this many bytes is read in one go."""
_KEYS = (
    *(b'"usage"', b'"tokens_predicted"', b'"tokens_evaluated"', b'"prompt_eval_count"', b'"eval_count"'),
    *(b'"meta_info"', b'"details"', b'"stats"'),
)

_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)] | None


class _Counts(msgspec.Struct):
    """OpenAI's, Anthropic's, SGLang's, TGI's and LM Studio's names."""

    prompt_tokens: _Count = None
    completion_tokens: _Count = None
    input_tokens: _Count = None
    output_tokens: _Count = None
    cache_creation_input_tokens: _Count = None
    cache_read_input_tokens: _Count = None
    input_length: _Count = None
    generated_tokens: _Count = None
    total_output_tokens: _Count = None
    prefill: list[msgspec.Raw] = []
    best_of_sequences: list[_Counts] | None = None

    def read(self) -> Usage | None:
        prompt = self.prompt_tokens if self.prompt_tokens is not None else self.input_tokens
        if prompt is not None:
            prompt += (self.cache_creation_input_tokens or 0) + (self.cache_read_input_tokens or 0)
        elif self.input_length is not None:
            prompt = self.input_length
        elif self.prefill:
            prompt = len(self.prefill)
        new = next((count for count in self._news() if count is not None), None)
        if new is not None and self.best_of_sequences:
            new += sum(other.generated_tokens or 0 for other in self.best_of_sequences)
        return _usage(prompt, new)

    def _news(self) -> tuple[int | None, ...]:
        return self.completion_tokens, self.output_tokens, self.generated_tokens, self.total_output_tokens


class _Answer(msgspec.Struct):
    """The top of a JSON answer, or of one event of a stream."""

    usage: _Counts | None = None
    meta_info: _Counts | None = None
    details: _Counts | None = None
    stats: _Counts | None = None
    tokens_predicted: _Count = None
    tokens_evaluated: _Count = None
    prompt_eval_count: _Count = None
    eval_count: _Count = None
    type: str | None = None
    response: msgspec.Raw = msgspec.Raw()
    message: msgspec.Raw = msgspec.Raw()
    result: msgspec.Raw = msgspec.Raw()

    def read(self) -> Usage | None:
        for counts in (self.usage, self.meta_info, self.details, self.stats):
            found = None if counts is None else counts.read()
            if found is not None:
                return found
        return _usage(self.tokens_evaluated, self.tokens_predicted) or _usage(
            self.prompt_eval_count, self.eval_count
        )

    def inside(self) -> bytes:
        """The whole answer, in the event that ends a stream of OpenAI's responses or LM Studio's chat."""
        if self.type in ("response.completed", "response.incomplete"):
            return bytes(self.response)
        return bytes(self.result) if self.type == "chat.end" else b""


_decode = msgspec.json.Decoder(_Answer).decode
_decode_several = msgspec.json.Decoder(list[_Answer]).decode


def usage_of(kind: str, tail: bytes, *, head: bytes = b"", is_whole: bool = True) -> Usage | None:
    """What an answer of ``kind`` (of ``KINDS``) reports, by its end and a stream's beginning; or ``None``.

    ``is_whole``: ``tail`` is all of it. Raises nothing, whatever it holds.
    """
    if kind != "json":
        return _of_stream(tail, head, is_whole)
    if is_whole and len(tail) <= _SHORT:
        return _read(tail) or _of_several(tail)
    return _of_end(tail) or (_of_several(tail) if is_whole else None)


def _usage(prompt: int | None, new: int | None) -> Usage | None:
    return None if prompt is None and new is None else Usage(prompt, new)


def _read(text: bytes) -> Usage | None:
    try:
        return _decode(text).read()
    except (msgspec.MsgspecError, RecursionError):
        return None


def _of_end(text: bytes, *, closed: bytes = b"") -> Usage | None:
    """The usage in an object whose beginning may be missing.

    What follows a name, with a brace put before it, parses as an object only if the name is at the top.
    A name inside a string can't be mistaken for one, since quotes in a string are escaped.
    """
    text = text.rstrip()
    for name in _KEYS:
        at = len(text)
        for _ in range(_TRIES):
            at = text.rfind(name, 0, at)
            if at < 0:
                break
            end = b"{" + text[at:]
            found = _read(end.removesuffix(closed))
            if found is not None:
                return found
    return None


def _of_several(text: bytes) -> Usage | None:
    """What the answers in a list, one to each prompt, used together."""
    if not text.lstrip().startswith(b"["):
        return None
    try:
        found = [answer.read() for answer in _decode_several(text)]
    except (msgspec.MsgspecError, RecursionError):
        return None
    known = [usage for usage in found if usage is not None]
    if not known or len(known) < len(found):
        return None
    return _usage(_sum(usage.prompt_tokens for usage in known), _sum(usage.new_tokens for usage in known))


def _sum(counts: Iterator[int | None]) -> int | None:
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total


def _of_stream(tail: bytes, head: bytes, is_whole: bool) -> Usage | None:
    prompt = new = None
    for event, is_cut in _last_events(tail, is_whole):
        found = _of_event(event, is_cut)
        if found is not None:
            prompt = found.prompt_tokens if prompt is None else prompt
            new = found.new_tokens if new is None else new
        if prompt is not None and new is not None:
            break
    if prompt is None and new is not None:
        prompt = _first_prompt(head or tail)
    return _usage(prompt, new)


def _of_event(event: bytes, is_cut: bool) -> Usage | None:
    if is_cut:
        # As long as that only an event is which repeats the whole answer: inside of it, or at its top.
        return _of_end(event) or _of_end(event, closed=b"}")
    try:
        answer = _decode(event)
        whole = answer.inside()
        return _decode(whole).read() if whole else answer.read()
    except (msgspec.MsgspecError, RecursionError):
        return None


def _last_events(text: bytes, is_whole: bool) -> Iterator[tuple[bytes, bool]]:
    """The JSON of the last events or lines, from the end; whether the beginning of it is missing."""
    end = len(text)
    for _ in range(4 * _EVENTS):
        start = text.rfind(b"\n", 0, end) + 1
        line = text[start:end].strip()
        line = line.removeprefix(b"data:").lstrip()
        is_cut = not start and not is_whole
        if is_cut or line.startswith(b"{"):
            yield line, is_cut
        if not start:
            return
        end = start - 1


def _first_prompt(head: bytes) -> int | None:
    """Prompt tokens by the event that begins an Anthropic stream."""
    for line in head.split(b"\n", 8)[:8]:
        line = line.strip().removeprefix(b"data:").lstrip()
        if not line.startswith(b"{"):
            continue
        try:
            first = _decode(line)
            if first.type != "message_start":
                return None
            found = _decode(bytes(first.message)).read()
        except (msgspec.MsgspecError, RecursionError):
            return None
        return None if found is None else found.prompt_tokens
    return None


def really(asked: Workload, usage: Usage, *, longest_prompt: int = 0) -> Workload:
    """``asked``, corrected by the reported ``usage``: never more new tokens than were asked for.

    Each of several sequences is assumed to have all the new tokens, and each of several prompts to be the
    longest; beams, whose losers no answer counts, stay as asked for. A prompt counts as at most
    ``longest_prompt``, or as what was asked for if that is more.
    """
    new, prompt, total = asked.new_tokens, asked.prompt_tokens, asked.total_prompt_tokens
    if usage.new_tokens is not None and asked.beams <= 1:
        new = min(new, usage.new_tokens)
    if usage.prompt_tokens is not None:
        all_prompts = min(usage.prompt_tokens, max(longest_prompt, total or prompt))
        prompt = min(prompt, all_prompts) if total else all_prompts
        total = all_prompts if total else 0
    return msgspec.structs.replace(asked, prompt_tokens=prompt, total_prompt_tokens=total, new_tokens=new)
