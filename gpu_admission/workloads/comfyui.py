"""ComfyUI's ``/prompt``: a graph of nodes. Owns where in the graph the sizes of pictures are.

A number may be a link to another node (``["7", 0]``). What that will yield is not known here, so it
is skipped and its name goes into ``defaulted``. The largest number of each kind counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from gpu_admission.bodies.json import JSONObject, read_object
from gpu_admission.bodies.numbers import CEILING, capped, fraction, positive_option
from gpu_admission.errors import UnreadableBody
from gpu_admission.types import Workload
from gpu_admission.workloads.events import problem_event
from gpu_admission.workloads.tokens import TokensOption, counter

if TYPE_CHECKING:
    from gpu_admission.request import RequestInfo

_SIDES: Final = {"width": ("width", "target_width"), "height": ("height", "target_height")}
_BATCH: Final = ("batch_size", "amount")
_FRAMES: Final = ("length", "num_frames", "video_frames", "frames")
_SCALES: Final = ("scale_by", "upscale_by", "upscale_factor")


class ComfyUI:
    """Reads graphs of nodes. ``default_side``: pixels of a side that no node gives."""

    __slots__ = ("_counter", "_default_side", "offload_bytes")

    def __init__(self, *, default_side: int = 1024, tokens: TokensOption = "usual") -> None:
        self._default_side = positive_option(default_side, "default_side")
        self._counter = counter(tokens)
        self.offload_bytes = self._counter.offload_bytes

    def read(self, info: RequestInfo) -> Workload:
        """The workload of ``info``. Raises ``UnreadableBody``."""
        return self.of(read_object(info))

    def of(self, body: JSONObject) -> Workload:
        """The workload of ``body``. Raises ``UnreadableBody``."""
        inputs = list(_inputs(body.fields.get("prompt")))
        texts = [value for fields in inputs for value in fields.values() if type(value) is str]
        scale = _scale(inputs)
        sides = {side: _largest(inputs, names) for side, names in _SIDES.items()}
        frames = _largest(inputs, _FRAMES)
        return Workload(
            task="image",
            prompt_tokens=max(1, sum(self._counter.text(body, text) for text in texts)),
            sequences=_largest(inputs, _BATCH) or 1,
            width=_scaled(sides["width"] or self._default_side, scale),
            height=_scaled(sides["height"] or self._default_side, scale),
            frames=frames,
            defaulted=tuple(
                side for side, names in _SIDES.items() if not sides[side] or _links(inputs, names)
            ),
            features={"frames": float(frames)} if frames else {},
        )

    def clamp(self, body: bytes, new_tokens: int) -> bytes:
        """``body``: no text is generated."""
        return body

    def sse_error(self, message: str, code: str) -> bytes:
        """An error event."""
        return problem_event(message, code)


def is_graph(prompt: Any) -> bool:
    """Whether ``prompt`` is an object of nodes."""
    return type(prompt) is dict and any(
        type(node) is dict and "class_type" in node for node in prompt.values()
    )


def _inputs(graph: Any) -> Iterator[Mapping[str, Any]]:
    """The inputs of each node."""
    if type(graph) is not dict:
        raise UnreadableBody("prompt must be an object of nodes")
    for node in graph.values():
        inputs = node.get("inputs") if type(node) is dict else None
        if type(inputs) is dict:
            yield inputs


def _largest(inputs: list[Mapping[str, Any]], names: tuple[str, ...]) -> int:
    return max((math.ceil(_number(fields.get(name))) for fields in inputs for name in names), default=0)


def _links(inputs: list[Mapping[str, Any]], names: tuple[str, ...]) -> bool:
    return any(type(fields.get(name)) is list for fields in inputs for name in names)


def _number(value: Any) -> float:
    """A number, or text of a number, which ComfyUI accepts too; 0 for links and anything else."""
    if type(value) not in (int, float, str):
        return 0.0
    try:
        return fraction({"value": value}, "value", 0.0)
    except UnreadableBody:
        return 0.0


def _scale(inputs: list[Mapping[str, Any]]) -> float:
    """The product of all enlargements, since they may follow one another."""
    scale = 1.0
    for fields in inputs:
        for name in _SCALES:
            scale = min(scale * max(1.0, _number(fields.get(name))), float(CEILING))
    return scale


def _scaled(side: int, scale: float) -> int:
    return side if scale == 1.0 else capped(int(min(side * scale, float(CEILING))) + 1)
