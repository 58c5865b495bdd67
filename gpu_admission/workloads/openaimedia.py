"""OpenAI's requests to make pictures, videos or speech: images/generations, videos, audio/speech.

Owns ``n``, and uploads of pictures; sizes are in ``outputsizes``, speech recognition in ``whisper``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from gpu_admission.bodies.json import JSONObject
from gpu_admission.bodies.numbers import CEILING, capped, positive, positive_option
from gpu_admission.errors import UnreadableBody
from gpu_admission.types import Workload
from gpu_admission.workloads.anycase import spellings
from gpu_admission.workloads.content import Tallies
from gpu_admission.workloads.events import problem_event
from gpu_admission.workloads.limits import unchanged
from gpu_admission.workloads.members import model_in
from gpu_admission.workloads.outputsizes import Made, read_made, read_size
from gpu_admission.workloads.readings import largest, read_all
from gpu_admission.workloads.tokens import TokensOption

if TYPE_CHECKING:
    from gpu_admission.request import RequestInfo

_TEXTS = ("prompt", "input", "instructions", "negative_prompt")
_PICTURES = ("image", "image[]", "images", "mask", "input_reference", "video")


class OpenAIMedia:
    """Reads requests that make pictures, videos or speech.

    ``default_side``: pixels of a side where ``size`` is absent or ``auto``. ``fps``: frames in a second
    of video, where a body gives its length only in seconds. ``speech_tokens``: audio tokens for
    each token of the text that is spoken.
    """

    __slots__ = ("_default_side", "_fps", "_speech_tokens", "_tally", "offload_bytes")
    clamp = staticmethod(unchanged)
    sse_error = staticmethod(problem_event)

    def __init__(
        self,
        *,
        default_side: int = 1024,
        fps: int = 24,
        speech_tokens: int = 32,
        tokens: TokensOption = "usual",
    ) -> None:
        self._fps = positive_option(fps, "fps")
        self._default_side = positive_option(default_side, "default_side")
        self._speech_tokens = positive_option(speech_tokens, "speech_tokens")
        self._tally = Tallies(tokens)
        self.offload_bytes = self._tally.offload_bytes

    def read(self, info: RequestInfo) -> Workload:
        """The workload of ``info``. Raises ``UnreadableBody``."""
        bodies = [each for body in read_all(info) for each in spellings(body)]
        return largest(bodies, partial(self._of, path=info.path))

    def _of(self, body: JSONObject, *, path: str) -> Workload:
        tally = self._tally(body)
        for name in _TEXTS:
            tally.text(body.fields.get(name))
        text_tokens = max(1, tally.tokens)
        if path.endswith("/speech"):
            return self._speech(body.fields, text_tokens)
        for name in _PICTURES:
            if body.fields.get(name) is not None:
                tally.image(body.fields[name])
        made = self._made(body.fields)
        is_video = made.frames > 0 or "/videos" in path
        return Workload(
            task="video" if is_video else "image",
            prompt_tokens=text_tokens,
            sequences=capped(max(positive(body.fields, "n", 1), made.copies) * _prompts(body.fields)),
            images=tuple(tally.images),
            width=made.width or max(self._default_side, made.height),
            height=made.height or max(self._default_side, made.width),
            frames=made.frames,
            model=model_in(body.fields),
            defaulted=() if made.width and made.height else ("size",),
            features={"frames": float(made.frames)} if made.frames else {},
        )

    def _speech(self, fields: Mapping[str, Any], text_tokens: int) -> Workload:
        return Workload(
            task="speech",
            prompt_tokens=text_tokens,
            new_tokens=min(text_tokens * self._speech_tokens, CEILING),
            model=model_in(fields),
        )

    def _made(self, fields: Mapping[str, Any]) -> Made:
        size = fields.get("size")
        if size is not None and size != "auto" and read_size(size) is None:
            raise UnreadableBody("size must be WIDTHxHEIGHT or auto")
        return read_made((fields,), fps=self._fps)


def _prompts(fields: Mapping[str, Any]) -> int:
    """How many texts are asked for: some servers make a picture of each in a list."""
    prompt = fields.get("prompt")
    return max(1, len(prompt)) if type(prompt) is list else 1
