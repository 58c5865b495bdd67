"""Speech recognition: OpenAI's transcriptions and translations, and other Whisper servers.

Owns the upload's fields. The sound itself is not decoded: its length comes from a WAV's
header, or is bounded by its bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpu_admission.bodies.json import JSONObject
from gpu_admission.bodies.multipart import HEAD
from gpu_admission.bodies.numbers import capped, fraction, positive, positive_option
from gpu_admission.errors import UnreadableBody
from gpu_admission.types import Workload
from gpu_admission.workloads.audio import seconds
from gpu_admission.workloads.events import problem_event
from gpu_admission.workloads.forms import files, media_type, read_form
from gpu_admission.workloads.tokens import TokensOption, counter

if TYPE_CHECKING:
    from gpu_admission.request import RequestInfo

_REMOTE_SECONDS = 4 * 3600.0
"""What a recording that is not in the body is taken for."""
_LEAST_SECONDS = 0.001
_BEAMS = ("beam_size", "num_beams", "beams")
_PROMPTS = ("prompt", "initial_prompt", "hotwords")


class Whisper:
    """Reads uploads with one or more files; also a body that is the sound itself, or JSON.

    ``beam_size`` and ``best_of`` are the server's own values where a body names none,
    ``new_tokens`` is the most that the decoder makes of one window of 30 seconds.
    """

    __slots__ = ("_beam_size", "_best_of", "_counter", "_new_tokens", "offload_bytes")

    def __init__(
        self, *, beam_size: int = 5, best_of: int = 5, new_tokens: int = 448, tokens: TokensOption = "safe"
    ) -> None:
        self._beam_size = positive_option(beam_size, "beam_size")
        self._best_of = positive_option(best_of, "best_of")
        self._new_tokens = positive_option(new_tokens, "new_tokens")
        self._counter = counter(tokens)
        self.offload_bytes = self._counter.offload_bytes

    def read(self, info: RequestInfo) -> Workload:
        """The workload of ``info``. Raises ``UnreadableBody``."""
        body, length = _form(info)
        fields = body.fields
        beams = max(positive(fields, name, 0) for name in _BEAMS)
        width = max(beams or self._beam_size, self._best_of_candidates(fields))
        prompts = (fields[name] for name in _PROMPTS if type(fields.get(name)) is str)
        model = fields.get("model")
        return Workload(
            task="transcribe",
            prompt_tokens=max(1, sum(self._counter.text(body, prompt) for prompt in prompts)),
            new_tokens=self._new_tokens,
            sequences=capped(width * positive(fields, "batch_size", 1)),
            beams=width,
            audio_seconds=max(length, _LEAST_SECONDS),
            model=model if type(model) is str else None,
            stream=fields.get("stream") in (True, "true", "True", "1"),
            defaulted=() if beams else ("beam_size",),
        )

    def clamp(self, body: bytes, new_tokens: int) -> bytes:
        """``body``: what is said limits the text, not a field."""
        return body

    def sse_error(self, message: str, code: str) -> bytes:
        """An error event."""
        return problem_event(message, code)

    def _best_of_candidates(self, fields: Mapping[str, Any]) -> int:
        """Candidates that are sampled together, which a temperature above zero asks for."""
        sampled = fraction(fields, "temperature", 0.0) > 0
        return positive(fields, "best_of", self._best_of if sampled else 1)


def _form(info: RequestInfo) -> tuple[JSONObject, float]:
    """The fields of a request, and how long its sound is at most."""
    if media_type(info).startswith(("audio/", "video/", "application/octet-stream")):
        body = JSONObject(dict(info.query), len(info.body))
        return body, seconds(info.body[:HEAD], len(info.body))
    body = read_form(info)
    if media_type(info) != "multipart/form-data":
        return body, max(seconds(b"", len(info.body)), _REMOTE_SECONDS)
    if not files(body):
        raise UnreadableBody("the upload has no file")
    return body, sum(seconds(part.head, part.size) for part in files(body))
