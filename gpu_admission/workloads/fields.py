"""A user's own kind of body, described by where its fields are. Owns the paths.

A path is names joined by dots: ``params.max_len``. A number picks an item of a list, and
``*`` every item: ``messages.*.text``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from gpu_admission.bodies.formvalues import PartString
from gpu_admission.bodies.json import JSONObject, LongList
from gpu_admission.bodies.json import largest as largest_value
from gpu_admission.bodies.multipart import part_text
from gpu_admission.bodies.numbers import capped, fraction, positive_option, whole
from gpu_admission.bodies.shorten import LONG
from gpu_admission.request import Part
from gpu_admission.types import Workload
from gpu_admission.workloads.audio import AUDIO_HEAD, seconds, seconds_of_text
from gpu_admission.workloads.content import Tallies, Tally
from gpu_admission.workloads.events import problem_event
from gpu_admission.workloads.imagetokens import ImageTokensOption
from gpu_admission.workloads.limits import lower_limit
from gpu_admission.workloads.members import listed
from gpu_admission.workloads.readings import largest, read_all
from gpu_admission.workloads.tokens import TokensOption

if TYPE_CHECKING:
    from gpu_admission.request import RequestInfo

Path: TypeAlias = "str | None"
_TASKS = ("generate", "embed", "rerank", "image", "video", "transcribe", "speech", "infer")
_NUMBERS = frozenset(
    {"new_tokens", "sequences", "beams", "width", "height", "frames", "tensor_bytes", "context"}
)
_DEFAULTED = ("new_tokens", "width", "height", "frames")


class Fields:
    """Reads a JSON object, a form, or an upload, by the paths of its fields.

    ``images`` and ``audio`` lead to base64, data URLs, addresses or uploaded files, ``audio``
    also to a number of seconds. Of several numbers the largest counts, and links to other nodes
    of a graph (``["7", 0]``) are skipped. ``features`` names paths of further numbers: a list counts
    as its length, true as 1, and a missing value as 0. ``default_new_tokens`` and ``default_side``
    (pixels) apply where the path is given but a body has no value there.
    """

    __slots__ = ("_defaults", "_features", "_paths", "_tally", "_task", "offload_bytes")
    sse_error = staticmethod(problem_event)

    def __init__(
        self,
        *,
        task: str = "generate",
        prompt: Path = None,
        new_tokens: Path = None,
        sequences: Path = None,
        beams: Path = None,
        images: Path = None,
        width: Path = None,
        height: Path = None,
        frames: Path = None,
        audio: Path = None,
        tensor_bytes: Path = None,
        context: Path = None,
        model: Path = None,
        stream: Path = None,
        features: Mapping[str, str] | None = None,
        default_new_tokens: int = 1024,
        default_side: int = 1024,
        tokens: TokensOption = "usual",
        image_tokens: ImageTokensOption = "any",
    ) -> None:
        if task not in _TASKS:
            raise ValueError(f"task must be one of {_TASKS}, got {task!r}")
        given = {
            "prompt": prompt, "new_tokens": new_tokens, "sequences": sequences, "beams": beams,
            "images": images, "width": width, "height": height, "frames": frames, "audio": audio,
            "model": model, "tensor_bytes": tensor_bytes, "context": context, "stream": stream,
        }  # fmt: skip
        self._task = task
        self._paths = {name: _steps(name, path) for name, path in given.items() if path is not None}
        self._features = {name: _steps(name, path) for name, path in (features or {}).items()}
        if not self._paths and not self._features:
            raise ValueError("Fields needs the path of at least one field")
        self._defaults = {"new_tokens": positive_option(default_new_tokens, "default_new_tokens")}
        self._defaults |= dict.fromkeys(("width", "height"), positive_option(default_side, "default_side"))
        self._tally = Tallies(tokens, image_tokens)
        self.offload_bytes = self._tally.offload_bytes

    def read(self, info: RequestInfo) -> Workload:
        """The workload of ``info``. Raises ``UnreadableBody``."""
        return largest(read_all(info, repeats=largest_value), self._of)  # the server is not known

    def _of(self, body: JSONObject) -> Workload:
        tally = self._tally(body)
        for value in self._values(body, "images"):
            tally.image(value)
        recordings = (each for value in self._values(body, "audio") for each in listed(value))
        audio_seconds = sum((_seconds(body, each) for each in recordings), 0.0)
        prompts = [row for value in self._values(body, "prompt") for row in _rows(tally, value)]
        longest, total = max(prompts, default=1), sum(prompts)
        model = next(self._values(body, "model"), None)
        return Workload(
            task=self._task,
            prompt_tokens=longest + tally.tokens,
            total_prompt_tokens=total + tally.tokens if len(prompts) > 1 else 0,
            new_tokens=self._number(body, "new_tokens"),
            sequences=capped(max(1, len(prompts)) * max(1, self._number(body, "sequences"))),
            beams=max(1, self._number(body, "beams")),
            images=tuple(tally.images),
            width=self._number(body, "width"),
            height=self._number(body, "height"),
            frames=self._number(body, "frames"),
            audio_seconds=audio_seconds,
            tensor_bytes=self._number(body, "tensor_bytes"),
            context=self._number(body, "context"),
            model=model if type(model) is str else None,
            stream=next(self._values(body, "stream"), None) in (True, "true", "True", "1"),
            defaulted=tuple(name for name in self._paths if self._is_unsaid(body, name)),
            features={name: _feature(body, steps, name) for name, steps in self._features.items()},
        )

    def clamp(self, body: bytes, new_tokens: int) -> bytes:
        """``body`` with its limit at most ``new_tokens``; unchanged if the limit is in a list, or missing."""
        steps = self._paths.get("new_tokens", ())
        if not steps or any(step == "*" or step.isdecimal() for step in steps):
            return body
        return lower_limit(body, steps[-1:], new_tokens, places=(steps[:-1],))

    def _values(self, body: JSONObject, name: str) -> Iterator[Any]:
        steps = self._paths.get(name)
        return iter(()) if steps is None else _found(body.fields, steps)

    def _number(self, body: JSONObject, name: str) -> int:
        """The largest number given, or the default of a field whose path is known."""
        return self._said(body, name) or (self._defaults.get(name, 0) if name in self._paths else 0)

    def _said(self, body: JSONObject, name: str) -> int:
        values = (_text(body, value) for value in self._values(body, name) if not _is_link(value))
        return max((whole(value, name) for value in values), default=0)

    def _is_unsaid(self, body: JSONObject, name: str) -> bool:
        """Whether a number is a default, or some of it is behind links to other nodes."""
        if name not in _NUMBERS:
            return False
        if any(map(_is_link, self._values(body, name))):
            return True
        return name in _DEFAULTED and not self._said(body, name)


def _steps(name: str, path: str) -> tuple[str, ...]:
    if not isinstance(path, str):
        raise TypeError(f"{name} must be a path such as 'input.text', not {type(path).__name__}")
    steps = tuple(path.split("."))
    if not all(steps):
        raise ValueError(f"{name}={path!r} is not a path such as 'input.text'")
    return steps


def _found(value: Any, steps: tuple[str, ...]) -> Iterator[Any]:
    """Every value that ``steps`` lead to and that is not ``None``."""
    if not steps:
        if value is not None:
            yield value
    elif type(value) is dict:
        members = value.values() if steps[0] == "*" else (value.get(steps[0]),)
        for member in members:
            yield from _found(member, steps[1:])
    elif type(value) is list:
        items = value if steps[0] == "*" else value[int(steps[0]) :][:1] if steps[0].isdecimal() else ()
        for item in items:
            yield from _found(item, steps[1:])


def _is_link(value: Any) -> bool:
    """Whether a value is a node's name and one of its outputs, as in ComfyUI's graphs: ``["7", 0]``."""
    return type(value) is list and list(map(type, value)) == [str, int]


def _rows(tally: Tally, value: Any) -> list[int]:
    if type(value) is list:
        value = [_text(tally.body, item) for item in value]
    return tally.rows(_text(tally.body, value))


def _text(body: JSONObject, value: Any) -> Any:
    """A field's value; of files the last one's content, for servers that take fields as files."""
    if type(value) is list and value and type(value[-1]) is Part:
        value = value[-1]
    if type(value) is not Part:
        return value
    return body.leave_out(PartString(value)) if value.size > LONG else part_text(value)


def _seconds(body: JSONObject, value: Any) -> float:
    if type(value) is Part:
        return seconds(value.head, value.size)
    if type(value) is str:
        return seconds_of_text(body.head(value, AUDIO_HEAD), body.size(value))
    return fraction({"audio": value}, "audio", 0.0)


def _feature(body: JSONObject, steps: tuple[str, ...], name: str) -> float:
    """The sum of the numbers that ``steps`` lead to."""
    total = 0.0
    for value in _found(body.fields, steps):
        if isinstance(value, (list, LongList)):
            total += len(value)
        elif isinstance(value, bool):
            total += value
        else:
            total += fraction({name: value}, name, 0.0)
    return total
