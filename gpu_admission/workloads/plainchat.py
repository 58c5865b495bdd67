"""A chat as most are: messages of plain text, one limit, and settings that cost nothing.

Owns which bodies these are, and reads them in one step, without a dictionary for each object. Every
other body is ``openai``'s, and so is what any body costs.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from gpu_admission.bodies.json import LARGE, HasBody
from gpu_admission.bodies.numbers import CEILING
from gpu_admission.workloads.content import LONGEST_WORD

_Role = Annotated[str, msgspec.Meta(max_length=LONGEST_WORD)]
_Limit = Annotated[int, msgspec.Meta(gt=0, le=CEILING)]


class _Message(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    role: _Role
    content: str


class PlainChat(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The fields that such a chat may have. Those of type ``Any`` cost nothing, whatever they say."""

    messages: list[_Message]
    model: Any = None
    max_tokens: _Limit | None = None
    temperature: Any = None
    stream: Any = None
    top_p: Any = None
    stop: Any = None
    seed: Any = None
    stream_options: Any = None
    user: Any = None
    max_completion_tokens: _Limit | None = None
    frequency_penalty: Any = None
    presence_penalty: Any = None
    response_format: Any = None
    logit_bias: Any = None
    logprobs: Any = None
    top_logprobs: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    reasoning_effort: Any = None
    top_k: Any = None
    min_p: Any = None
    repetition_penalty: Any = None
    ignore_eos: Any = None
    stop_token_ids: Any = None
    skip_special_tokens: Any = None


_decode = msgspec.json.Decoder(PlainChat).decode


def plain_chat(request: HasBody) -> PlainChat | None:
    """The body of ``request``, if it is a chat of this kind; ``None``: it has to be read otherwise."""
    body = request.body
    if len(body) >= LARGE or len(body) > request.max_json_values:
        return None
    try:
        return _decode(body)
    except (ValueError, RecursionError):
        return None
