"""OpenAI's pictures and speech that are made: images/generations, images/edits, audio/speech.

Owns ``size`` and ``n``, and uploads of pictures. Recognition of speech is in ``whisper``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpu_admission.bodies.numbers import CEILING, positive, positive_option
from gpu_admission.errors import UnreadableBody
from gpu_admission.types import Workload
from gpu_admission.workloads.content import Tally
from gpu_admission.workloads.events import problem_event
from gpu_admission.workloads.forms import read_form
from gpu_admission.workloads.images import Size
from gpu_admission.workloads.imagetokens import rule_of
from gpu_admission.workloads.tokens import TokensOption, counter

if TYPE_CHECKING:
    from gpu_admission.request import RequestInfo

_SIZE = re.compile(r"\s*(\d{1,15})\s*[xX*]\s*(\d{1,15})\s*", re.ASCII)
_PICTURES = ("image", "image[]", "images", "mask")


class OpenAIMedia:
    """Reads requests that make pictures or speech.

    ``default_side`` are the pixels of a side where ``size`` is absent or ``auto``;
    ``speech_tokens`` are the audio tokens of each token of the text that is spoken.
    """

    __slots__ = ("_counter", "_default_side", "_speech_tokens", "offload_bytes")

    def __init__(
        self, *, default_side: int = 1024, speech_tokens: int = 32, tokens: TokensOption = "safe"
    ) -> None:
        self._default_side = positive_option(default_side, "default_side")
        self._speech_tokens = positive_option(speech_tokens, "speech_tokens")
        self._counter = counter(tokens)
        self.offload_bytes = self._counter.offload_bytes

    def read(self, info: RequestInfo) -> Workload:
        """The workload of ``info``. Raises ``UnreadableBody``."""
        body = read_form(info)
        tally = Tally(body, self._counter, rule_of("gemma-3"))
        for name in ("prompt", "input", "instructions"):
            tally.text(body.fields.get(name))
        text_tokens = max(1, tally.tokens)
        if info.path.endswith("/speech"):
            return self._speech(body.fields, text_tokens)
        for name in _PICTURES:
            if body.fields.get(name) is not None:
                tally.image(body.fields[name])
        width, height = self._size(body.fields)
        return Workload(
            task="image",
            prompt_tokens=text_tokens,
            sequences=positive(body.fields, "n", 1),
            images=tuple(tally.images),
            width=width or self._default_side,
            height=height or self._default_side,
            model=_model(body.fields),
            defaulted=() if width else ("size",),
        )

    def clamp(self, body: bytes, new_tokens: int) -> bytes:
        """``body``: no text is generated."""
        return body

    def sse_error(self, message: str, code: str) -> bytes:
        """An error event."""
        return problem_event(message, code)

    def _speech(self, fields: Mapping[str, Any], text_tokens: int) -> Workload:
        return Workload(
            task="speech",
            prompt_tokens=text_tokens,
            new_tokens=min(text_tokens * self._speech_tokens, CEILING),
            model=_model(fields),
        )

    def _size(self, fields: Mapping[str, Any]) -> Size:
        """The size that is asked for; (0, 0) where none is said."""
        value = fields.get("size")
        if value is None or value == "auto":
            width, height = positive(fields, "width", 0), positive(fields, "height", 0)
            return (width or height, height or width)
        match = _SIZE.fullmatch(value) if type(value) is str else None
        if match is None:
            raise UnreadableBody("size must be WIDTHxHEIGHT or auto")
        return int(match[1]), int(match[2])


def _model(fields: Mapping[str, Any]) -> str | None:
    model = fields.get("model")
    return model if type(model) is str else None
