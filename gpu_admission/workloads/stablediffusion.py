"""The Stable Diffusion web UI's txt2img and img2img. Owns how large the pictures get.

``batch_size`` pictures are made together, ``n_iter`` batches one after the other. With
``enable_hr`` there is a second pass, which counts if it is larger.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpu_admission.bodies.json import read_object
from gpu_admission.bodies.numbers import CEILING, fraction, positive, positive_option, whole
from gpu_admission.types import Workload
from gpu_admission.workloads.content import Tally
from gpu_admission.workloads.events import problem_event
from gpu_admission.workloads.images import Size
from gpu_admission.workloads.imagetokens import rule_of
from gpu_admission.workloads.tokens import TokensOption, counter

if TYPE_CHECKING:
    from gpu_admission.request import RequestInfo

_TEXTS = ("prompt", "negative_prompt", "hr_prompt", "hr_negative_prompt")
_PICTURES = ("init_images", "mask", "image")
_HIRES_SCALE = 2.0
_STEPS = 20


class StableDiffusion:
    """Reads ``/sdapi/v1/txt2img`` and ``/sdapi/v1/img2img``.

    ``default_side`` are the pixels of a width or height that a body leaves out.
    """

    __slots__ = ("_counter", "_default_side", "offload_bytes")

    def __init__(self, *, default_side: int = 512, tokens: TokensOption = "usual") -> None:
        self._default_side = positive_option(default_side, "default_side")
        self._counter = counter(tokens)
        self.offload_bytes = self._counter.offload_bytes

    def read(self, info: RequestInfo) -> Workload:
        """The workload of ``info``. Raises ``UnreadableBody``."""
        body = read_object(info)
        fields = body.fields
        texts = Tally(body, self._counter, rule_of("gemma-3"))
        pictures = Tally(body, self._counter, rule_of("gemma-3"))
        for name in _TEXTS:
            texts.text(fields.get(name))
        for name in _PICTURES:
            if fields.get(name) is not None:
                pictures.image(fields[name])
        width, height = self._largest(fields)
        scripts = fields.get("alwayson_scripts")
        return Workload(
            task="image",
            prompt_tokens=max(1, texts.tokens),
            sequences=positive(fields, "batch_size", 1),
            images=tuple(pictures.images),
            width=width,
            height=height,
            defaulted=tuple(name for name in ("width", "height") if not whole(fields.get(name), name)),
            features={
                "steps": float(positive(fields, "steps", _STEPS)),
                "n_iter": float(positive(fields, "n_iter", 1)),
                "scripts": float(len(scripts)) if type(scripts) is dict else 0.0,
            },
        )

    def clamp(self, body: bytes, new_tokens: int) -> bytes:
        """``body``: no text is generated."""
        return body

    def sse_error(self, message: str, code: str) -> bytes:
        """An error event."""
        return problem_event(message, code)

    def _largest(self, fields: Mapping[str, Any]) -> Size:
        """Width and height of the larger of the two passes."""
        width = positive(fields, "width", self._default_side)
        height = positive(fields, "height", self._default_side)
        if not fields.get("enable_hr"):
            return width, height
        second = _second_pass(fields, width, height)
        return max((width, height), second, key=math.prod)


def _second_pass(fields: Mapping[str, Any], width: int, height: int) -> Size:
    """The size that the first picture is scaled to: by a factor, or until it covers a size."""
    wide = whole(fields.get("hr_resize_x"), "hr_resize_x")
    high = whole(fields.get("hr_resize_y"), "hr_resize_y")
    scale = max(wide / width, high / height) or fraction(fields, "hr_scale", _HIRES_SCALE)
    return min(math.ceil(width * scale), CEILING), min(math.ceil(height * scale), CEILING)
