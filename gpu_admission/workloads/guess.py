"""A body of no known API. Owns the guess, which is high on purpose.

JSON with the fields of a known API is read as that API's; any other object is charged as
if all of it were prompt, and uploads by their files. What remains can't be read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from gpu_admission.bodies.json import JSONObject
from gpu_admission.bodies.json import largest as largest_value
from gpu_admission.bodies.numbers import capped, positive, positive_option
from gpu_admission.types import Workload
from gpu_admission.workloads.audio import seconds
from gpu_admission.workloads.comfyui import ComfyUI, is_graph
from gpu_admission.workloads.content import Tallies
from gpu_admission.workloads.events import problem_event
from gpu_admission.workloads.forms import files
from gpu_admission.workloads.images import UNKNOWN, size_of_bytes
from gpu_admission.workloads.imagetokens import ImageTokensOption
from gpu_admission.workloads.kserve import KServe
from gpu_admission.workloads.limits import lower_limit, read_limit
from gpu_admission.workloads.openai import OpenAI
from gpu_admission.workloads.outputsizes import FPS, Made, read_made
from gpu_admission.workloads.readings import largest, read_all_or_file
from gpu_admission.workloads.rerank import Rerank
from gpu_admission.workloads.sglang import SGLang
from gpu_admission.workloads.tgi import TGI
from gpu_admission.workloads.tokens import TokensOption

if TYPE_CHECKING:
    from gpu_admission.request import RequestInfo

_LIMITS = (
    "max_tokens", "max_new_tokens", "max_completion_tokens", "max_output_tokens", "max_length",
    "max_gen_len", "n_predict", "num_predict", "max_decode_steps",
)  # fmt: skip
_COPIES = ("n", "best_of", "num_return_sequences", "num_beams", "beam_width", "batch_size")
_SETTINGS = ("parameters", "options", "sampling_params", "generation_config", "generate_kwargs", "params")
_NUMBERS = frozenset({*_LIMITS, *_COPIES, "temperature", "top_p", "top_k", "seed", "stream", "model"})
_OPENAI = frozenset({"messages", "prompt", "input", "tools", "functions", "documents", "system"}) | _NUMBERS
_TGI = frozenset({"inputs", "parameters"}) | _NUMBERS
_SGLANG = (
    frozenset({"text", "input_ids", "sampling_params", "image_data", "audio_data", "video_data"}) | _NUMBERS
)
_GRAPH = frozenset({"prompt"})
_PROMPTS = frozenset({"messages", "prompt", "input"})
_QUERIES = frozenset({"query", "queries"})
_DOCUMENTS = frozenset({"documents", "texts"})


class Guess:
    """Reads a request whose API is not known. The options are those of ``OpenAI``."""

    __slots__ = (
        *("_comfyui", "_default_new_tokens", "_kserve", "_openai", "_rerank", "_sglang", "_tally", "_tgi"),
        "offload_bytes",
    )
    sse_error = staticmethod(problem_event)

    def __init__(
        self,
        *,
        default_new_tokens: int = 1024,
        context: int | None = None,
        tokens: TokensOption = "usual",
        image_tokens: ImageTokensOption = "any",
    ) -> None:
        self._default_new_tokens = positive_option(default_new_tokens, "default_new_tokens")
        self._openai = OpenAI(
            default_new_tokens=default_new_tokens,
            completion_new_tokens=default_new_tokens,
            context=context,
            tokens=tokens,
            image_tokens=image_tokens,
        )
        self._kserve = KServe(default_new_tokens=default_new_tokens, tokens=tokens, image_tokens=image_tokens)
        self._rerank = Rerank(tokens=tokens, image_tokens=image_tokens)
        self._sglang = SGLang(default_new_tokens=default_new_tokens, tokens=tokens, image_tokens=image_tokens)
        self._comfyui = ComfyUI(tokens=tokens)
        self._tgi = TGI(default_new_tokens=default_new_tokens, context=context, tokens=tokens)
        self._tally = Tallies(tokens, image_tokens)
        self.offload_bytes = self._tally.offload_bytes

    def read(self, info: RequestInfo) -> Workload:
        """The workload of ``info``. Raises ``UnreadableBody``."""
        return largest(read_all_or_file(info, repeats=largest_value), partial(self._of, path=info.path))

    def _of(self, body: JSONObject, *, path: str) -> Workload:
        """The workload of a ``body`` that was sent to ``path``."""
        if files(body):
            return self._of_files(body)
        fields = body.fields
        if not fields.keys().isdisjoint(_QUERIES) and not fields.keys().isdisjoint(_DOCUMENTS):
            return self._rerank.of(body)
        if "text_input" in fields or _are_tensors(fields.get("inputs")):
            return self._kserve.of(body, path)
        if is_graph(fields.get("prompt")):
            return self._with_the_rest(self._comfyui.of(body), body, _GRAPH)
        if _is_sglang(fields):
            return self._with_the_rest(self._sglang.of(body, path), body, _SGLANG)
        if type(fields.get("inputs")) is str:
            return self._with_the_rest(self._tgi.of(body, path), body, _TGI)
        if not fields.keys().isdisjoint(_PROMPTS):
            return self._with_the_rest(self._openai.of(body, path), body, _OPENAI)
        nothing = Workload(new_tokens=self._default_new_tokens, defaulted=("max_tokens",))
        return self._with_the_rest(nothing, body, frozenset())

    def clamp(self, body: bytes, new_tokens: int) -> bytes:
        """``body`` with the limits of its object at most ``new_tokens``. Raises ``UnreadableBody``."""
        places = ((), *((name,) for name in _SETTINGS))
        return lower_limit(body, _LIMITS, new_tokens, places=places)

    def _of_files(self, body: JSONObject) -> Workload:
        """Files by their first bytes: pictures, sound, or tensors of unknown meaning."""
        tally = self._tally(body)
        audio_seconds = 0.0
        for part in files(body):
            if part.content_type.startswith("image/") or size_of_bytes(part.head) != UNKNOWN:
                tally.image(part)
            else:
                audio_seconds += seconds(part.head, part.size)
        tally.content({name: value for name, value in body.fields.items() if type(value) is str})
        return Workload(
            task="infer",
            prompt_tokens=max(1, tally.tokens),
            images=tuple(tally.images),
            audio_seconds=audio_seconds,
            tensor_bytes=sum(part.size for part in files(body)),
        )

    def _with_the_rest(self, workload: Workload, body: JSONObject, known: frozenset[str]) -> Workload:
        """``workload`` plus all fields that are not ``known``, charged as prompt and read as settings."""
        tally = self._tally(body)
        tally.content({name: value for name, value in body.fields.items() if name not in known})
        total = workload.total_prompt_tokens
        charged = replace(
            workload,
            prompt_tokens=max(1, workload.prompt_tokens + tally.tokens),
            total_prompt_tokens=total + tally.tokens * workload.sequences if total else 0,
            images=(*workload.images, *tally.images),
            audio_seconds=workload.audio_seconds + tally.audio_seconds,
        )
        return self._with_settings(charged, body.fields)

    def _with_settings(self, workload: Workload, fields: dict[str, Any]) -> Workload:
        """``workload`` with the largest limit, and all copies, that any settings in ``fields`` ask for."""
        if not workload.new_tokens:
            return workload  # it generates nothing, whatever the body says
        settings = [fields, *(fields[name] for name in _SETTINGS if type(fields.get(name)) is dict)]
        made = read_made(settings, fps=FPS)
        limits = [read_limit(found, _LIMITS, self._default_new_tokens) for found in settings]
        said = [limit for limit, absent in limits if not absent]
        if said:
            new = max(said) if workload.defaulted else max(workload.new_tokens, *said)
            workload = replace(workload, new_tokens=new, defaulted=())
        copies = math.prod(positive(found, name, 1) for found in settings for name in _COPIES)
        rows = workload.sequences if workload.total_prompt_tokens else 1
        sequences = capped(max(workload.sequences, rows * copies, rows * made.copies))
        return replace(workload, sequences=sequences, **_sizes(made))


def _sizes(made: Made) -> dict[str, Any]:
    """Sizes of the picture or video that is asked for, as fields of a workload; empty if none is."""
    sizes: dict[str, Any] = {"width": made.width, "height": made.height, "frames": made.frames}
    if made.frames:
        sizes["features"] = {"frames": float(made.frames)}
    return {name: value for name, value in sizes.items() if value}


def _is_sglang(fields: Mapping[str, Any]) -> bool:
    """Whether a body is SGLang's: its settings have SGLang's name, and its text is not in ``prompt``."""
    return "sampling_params" in fields and ("text" in fields or "input_ids" in fields)


def _are_tensors(inputs: Any) -> bool:
    return type(inputs) is list and any(type(item) is dict and "shape" in item for item in inputs)
