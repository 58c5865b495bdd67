"""ComfyUI's ``/prompt``: a graph of nodes. Owns where in the graph the sizes of pictures are.

A number may be a link to another node (``["7", 0]``). What that will yield is not known here: it counts
as the largest number that stands behind it, in that node or those that it is linked to, and the names of
sides go into ``defaulted``. The largest number of each kind counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from gpu_admission.bodies.json import JSONObject, read_object
from gpu_admission.bodies.numbers import CEILING, capped, fraction, positive_option
from gpu_admission.errors import UnreadableBody
from gpu_admission.types import Workload
from gpu_admission.workloads.events import problem_event
from gpu_admission.workloads.limits import unchanged
from gpu_admission.workloads.tokens import TokensOption, counter

if TYPE_CHECKING:
    from gpu_admission.request import RequestInfo

_SIDES: Final = {"width": ("width", "target_width"), "height": ("height", "target_height")}
_BATCH: Final = ("batch_size", "amount")
_FRAMES: Final = ("length", "num_frames", "video_frames", "frames")
_SCALES: Final = ("scale_by", "upscale_by", "upscale_factor")
_SEED: Final = "seed"
"""What has this in its name is a number up to 2^64 that makes nothing larger."""
_LARGEST: Final = 16384
"""ComfyUI makes no picture with a longer side, so no number behind a link counts for more."""
_LARGEST_SCALE: Final = 8.0

Inputs: TypeAlias = Mapping[str, Any]
Nodes: TypeAlias = Mapping[str, Inputs]
"""The inputs of each node, by its id."""


class ComfyUI:
    """Reads graphs of nodes. ``default_side``: pixels of a side that no node gives."""

    __slots__ = ("_counter", "_default_side", "offload_bytes")
    clamp = staticmethod(unchanged)
    sse_error = staticmethod(problem_event)

    def __init__(self, *, default_side: int = 1024, tokens: TokensOption = "usual") -> None:
        self._default_side = positive_option(default_side, "default_side")
        self._counter = counter(tokens)
        self.offload_bytes = self._counter.offload_bytes

    def read(self, info: RequestInfo) -> Workload:
        """The workload of ``info``. Raises ``UnreadableBody``."""
        return self.of(read_object(info))

    def of(self, body: JSONObject) -> Workload:
        """The workload of ``body``. Raises ``UnreadableBody``."""
        nodes = dict(_nodes(body.fields.get("prompt")))
        texts = [value for fields in nodes.values() for value in fields.values() if type(value) is str]
        scale = _scale(nodes)
        sides = {side: _largest(nodes, names) for side, names in _SIDES.items()}
        frames = _largest(nodes, _FRAMES)
        return Workload(
            task="image",
            prompt_tokens=max(1, sum(self._counter.text(body, text) for text in texts)),
            sequences=_largest(nodes, _BATCH) or 1,
            width=_scaled(sides["width"] or self._default_side, scale),
            height=_scaled(sides["height"] or self._default_side, scale),
            frames=frames,
            defaulted=tuple(
                side for side, names in _SIDES.items() if not sides[side] or _links(nodes, names)
            ),
            features={"frames": float(frames)} if frames else {},
        )


def is_graph(prompt: Any) -> bool:
    """Whether ``prompt`` is an object of nodes."""
    return type(prompt) is dict and any(
        type(node) is dict and "class_type" in node for node in prompt.values()
    )


def _nodes(graph: Any) -> Iterator[tuple[str, Inputs]]:
    """Each node's id and inputs."""
    if type(graph) is not dict:
        raise UnreadableBody("prompt must be an object of nodes")
    for name, node in graph.items():
        inputs = node.get("inputs") if type(node) is dict else None
        if type(inputs) is dict:
            yield name, inputs


def _largest(nodes: Nodes, names: tuple[str, ...]) -> int:
    written = (_number(fields.get(name)) for fields in nodes.values() for name in names)
    linked = min(_behind(nodes, _links(nodes, names)), _LARGEST)
    return math.ceil(max(linked, max(written, default=0.0)))


def _links(nodes: Nodes, names: tuple[str, ...]) -> list[str]:
    """The nodes that inputs of these ``names`` are linked to."""
    return [link for fields in nodes.values() for name in names for link in _linked(fields.get(name))]


def _linked(value: Any) -> tuple[str, ...]:
    """The id of the node that an input is linked to, in a tuple; an empty one for any other input."""
    return (value[0],) if type(value) is list and value and type(value[0]) is str else ()


def _behind(nodes: Nodes, links: list[str]) -> float:
    """The largest number in the nodes that are reached by ``links``. Looks at each node once."""
    found, left, seen = 0.0, links, set(links)
    while left:
        for name, value in nodes.get(left.pop(), {}).items():
            if _SEED not in name:
                found = max(found, _number(value))
            left += set(_linked(value)) - seen
            seen.update(_linked(value))
    return found


def _number(value: Any) -> float:
    """A number, or text of a number, which ComfyUI accepts too; 0 for links and anything else."""
    if type(value) not in (int, float, str):
        return 0.0
    try:
        return fraction({"value": value}, "value", 0.0)
    except UnreadableBody:
        return 0.0


def _scale(nodes: Nodes) -> float:
    """The product of all enlargements, since they may follow one another."""
    scale = 1.0
    linked = min(_behind(nodes, _links(nodes, _SCALES)), _LARGEST_SCALE)
    for fields in nodes.values():
        for name in _SCALES:
            value = fields.get(name)
            factor = linked if type(value) is list else _number(value)
            scale = min(scale * max(1.0, factor), float(CEILING))
    return scale


def _scaled(side: int, scale: float) -> int:
    return side if scale == 1.0 else capped(int(min(side * scale, float(CEILING))) + 1)
