"""Speech recognition: OpenAI's transcriptions and translations, and other Whisper servers.

Owns the upload's fields. The sound itself is not decoded: its length comes from a WAV's
header, or is bounded by its bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from gpu_admission.bodies.json import JSONObject
from gpu_admission.bodies.numbers import capped, fraction, positive, positive_option
from gpu_admission.errors import UnreadableBody
from gpu_admission.types import Workload
from gpu_admission.workloads.audio import seconds
from gpu_admission.workloads.events import problem_event
from gpu_admission.workloads.forms import files, media_type
from gpu_admission.workloads.limits import read_limit, unchanged
from gpu_admission.workloads.members import model_in
from gpu_admission.workloads.readings import largest, read_all_or_file
from gpu_admission.workloads.tokens import TokensOption, counter

if TYPE_CHECKING:
    from gpu_admission.request import RequestInfo

_REMOTE_SECONDS = 4 * 3600.0
"""Assumed length, in seconds, of a recording that is not in the body."""
_LEAST_SECONDS = 0.001
_SOUND_TYPES = ("audio/", "video/", "application/octet-stream")
_BEAMS = ("beam_size",)
_OTHER_BEAMS = ("num_beams", "beams")
_PROMPTS = ("prompt", "initial_prompt", "hotwords")


class Whisper:
    """Reads uploads with one or more files; also a body that is the sound itself, or JSON.

    ``beam_size`` and ``best_of`` are the server's own values where a body names none,
    ``new_tokens`` is the most that the decoder makes of one window of 30 seconds.
    """

    __slots__ = ("_beam_size", "_best_of", "_counter", "_new_tokens", "offload_bytes")
    clamp = staticmethod(unchanged)
    sse_error = staticmethod(problem_event)

    def __init__(
        self, *, beam_size: int = 5, best_of: int = 5, new_tokens: int = 448, tokens: TokensOption = "usual"
    ) -> None:
        self._beam_size = positive_option(beam_size, "beam_size")
        self._best_of = positive_option(best_of, "best_of")
        self._new_tokens = positive_option(new_tokens, "new_tokens")
        self._counter = counter(tokens)
        self.offload_bytes = self._counter.offload_bytes

    def read(self, info: RequestInfo) -> Workload:
        """The workload of ``info``. Raises ``UnreadableBody``."""
        kind, bodies = media_type(info), read_all_or_file(info)
        is_form = kind == "multipart/form-data" and not any(map(files, bodies))
        if is_form and (info.was_form or not info.body.lstrip().startswith(b"{")):
            raise UnreadableBody("the upload has no file")
        query = dict(info.query) if kind.startswith(_SOUND_TYPES) else {}
        return largest(bodies, partial(self._of, query=query))

    def _of(self, body: JSONObject, *, query: Mapping[str, Any]) -> Workload:
        """The workload of ``body``; ``query`` are the settings of one that is the sound itself."""
        fields = {**body.fields, **query}
        beams, is_default = read_limit(fields, _BEAMS, self._beam_size, _OTHER_BEAMS)
        width = max(beams, self._best_of_candidates(fields))
        prompts = (fields[name] for name in _PROMPTS if type(fields.get(name)) is str)
        return Workload(
            task="transcribe",
            prompt_tokens=max(1, sum(self._counter.text(body, prompt) for prompt in prompts)),
            new_tokens=self._new_tokens,
            sequences=capped(width * positive(fields, "batch_size", 1)),
            beams=width,
            audio_seconds=max(_seconds(body), _LEAST_SECONDS),
            model=model_in(fields),
            stream=fields.get("stream") in (True, "true", "True", "1"),
            defaulted=("beam_size",) if is_default else (),
        )

    def _best_of_candidates(self, fields: Mapping[str, Any]) -> int:
        """Candidates that are sampled together, which a temperature above zero asks for."""
        sampled = fraction(fields, "temperature", 0.0) > 0
        return positive(fields, "best_of", self._best_of if sampled else 1)


def _seconds(body: JSONObject) -> float:
    """The longest that the sound in ``body`` can be; a recording that is only referred to counts as long."""
    if found := files(body):
        return sum(seconds(part.head, part.size) for part in found)
    return max(seconds(b"", body.total), _REMOTE_SECONDS)
