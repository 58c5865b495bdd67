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
from gpu_admission.workloads.content import Tallies
from gpu_admission.workloads.events import problem_event
from gpu_admission.workloads.images import Size
from gpu_admission.workloads.limits import unchanged
from gpu_admission.workloads.tokens import TokensOption

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

    __slots__ = ("_default_side", "_tally", "offload_bytes")
    clamp = staticmethod(unchanged)
    sse_error = staticmethod(problem_event)

    def __init__(self, *, default_side: int = 512, tokens: TokensOption = "usual") -> None:
        self._default_side = positive_option(default_side, "default_side")
        self._tally = Tallies(tokens)
        self.offload_bytes = self._tally.offload_bytes

    def read(self, info: RequestInfo) -> Workload:
        """The workload of ``info``. Raises ``UnreadableBody``."""
        body = read_object(info)
        fields = body.fields
        tally = self._tally(body)
        for name in _TEXTS:
            tally.text(fields.get(name))
        text_tokens = max(1, tally.tokens)
        for name in _PICTURES:
            if fields.get(name) is not None:
                tally.image(fields[name])
        width, height = self._largest(fields)
        scripts = fields.get("alwayson_scripts")
        return Workload(
            task="image",
            prompt_tokens=text_tokens,
            sequences=positive(fields, "batch_size", 1),
            images=tuple(tally.images),
            width=width,
            height=height,
            defaulted=tuple(name for name in ("width", "height") if not whole(fields.get(name), name)),
            features={
                "steps": float(positive(fields, "steps", _STEPS)),
                "n_iter": float(positive(fields, "n_iter", 1)),
                "scripts": float(len(scripts)) if type(scripts) is dict else 0.0,
            },
        )

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
