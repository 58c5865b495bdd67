"""KServe's inference protocol, as Triton speaks it. Owns tensors, and Triton's generate extension.

A tensor's bytes are its shape times its type, wherever its data is: in the JSON, behind it
as binary, or in shared memory, where the body holds none of it. The largest statement
counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from gpu_admission.bodies.json import JSONObject, LongList, largest, read_object
from gpu_admission.bodies.numbers import capped, positive, positive_option, whole
from gpu_admission.errors import UnreadableBody
from gpu_admission.request import RequestInfo
from gpu_admission.types import Workload
from gpu_admission.workloads.content import Tallies
from gpu_admission.workloads.events import sent_event
from gpu_admission.workloads.imagetokens import ImageTokensOption
from gpu_admission.workloads.limits import lower_limit, read_limit
from gpu_admission.workloads.members import settings_in
from gpu_admission.workloads.tokens import TokensOption

_HEADER = "inference-header-content-length"
_LIMIT = ("max_tokens",)
_OTHER_LIMITS = ("max_new_tokens", "max_output_len", "request_output_len")
_PLACES = ("", "parameters.")
_LIMITS = tuple(place + name for place in _PLACES for name in _LIMIT)
_OTHERS = tuple(place + name for place in _PLACES for name in _OTHER_LIMITS)
_COPIES = ("beam_width", "n", "num_return_sequences")
_BYTES_OF: Final[Mapping[str, int]] = {
    **dict.fromkeys(("BOOL", "INT8", "UINT8", "FP8"), 1),
    **dict.fromkeys(("INT16", "UINT16", "FP16", "BF16"), 2),
    **dict.fromkeys(("INT32", "UINT32", "FP32"), 4),
    **dict.fromkeys(("INT64", "UINT64", "FP64"), 8),
}
_LENGTH_PREFIX = 4
_NUMBER_BYTES = 4
"""``1,`` is two characters of JSON and at most eight bytes of tensor."""


class KServe:
    """Reads ``/v2/.../infer``, ``/v1/...:predict`` and ``/v2/.../generate``.

    ``default_new_tokens`` are taken where a body to ``generate`` names no limit.
    """

    __slots__ = ("_default_new_tokens", "_tally", "offload_bytes")

    def __init__(
        self,
        *,
        default_new_tokens: int = 1024,
        tokens: TokensOption = "usual",
        image_tokens: ImageTokensOption = "any",
    ) -> None:
        self._default_new_tokens = positive_option(default_new_tokens, "default_new_tokens")
        self._tally = Tallies(tokens, image_tokens)
        self.offload_bytes = self._tally.offload_bytes

    def read(self, info: RequestInfo) -> Workload:
        """The workload of ``info``. Raises ``UnreadableBody``."""
        if info.path.endswith(":predict"):
            return Workload(task="infer", tensor_bytes=max(1, _NUMBER_BYTES * len(info.body)))
        prefix = _json_length(info)
        if prefix == 0:
            return Workload(task="infer", tensor_bytes=max(1, len(info.body)))
        head = info if prefix is None else _json_part(info, prefix)
        body = read_object(head, repeats=largest)  # Triton's reader takes the first
        return self.of(body, info.path, binary=0 if prefix is None else len(info.body) - prefix)

    def of(self, body: JSONObject, path: str, *, binary: int = 0) -> Workload:
        """The workload of a ``body`` that was sent to ``path`` with ``binary`` bytes behind it."""
        if "inputs" not in body.fields and "text_input" in body.fields:
            return self._generate(body, path)
        return _infer(body, binary=binary)

    def clamp(self, body: bytes, new_tokens: int) -> bytes:
        """``body`` with its limits at most ``new_tokens``, where it asks for text."""
        if b'"text_input"' not in body:
            return body
        return lower_limit(body, _LIMIT, new_tokens, places=(("parameters",), ()), others=_OTHER_LIMITS)

    def sse_error(self, message: str, code: str) -> bytes:
        """The error event that ends a stream of Triton's generate extension."""
        return sent_event({"error": message, "code": code})

    def _generate(self, body: JSONObject, path: str) -> Workload:
        """Settings stand at the top or in ``parameters``; backends differ in which of them they obey."""
        inner = settings_in(body.fields, "parameters")
        fields = {**body.fields, **{f"parameters.{name}": value for name, value in inner.items()}}
        tally = self._tally(body)
        tally.content({name: value for name, value in body.fields.items() if name not in _LIMITS})
        new, absent = read_limit(fields, _LIMITS, self._default_new_tokens, _OTHERS)
        copies = [max(positive(fields, place + name, 1) for place in _PLACES) for name in _COPIES]
        return Workload(
            prompt_tokens=max(1, tally.tokens),
            new_tokens=new,
            sequences=capped(math.prod(copies)),
            beams=copies[0],
            images=tuple(tally.images),
            stream=path.endswith("_stream") or any(fields.get(place + "stream") is True for place in _PLACES),
            defaulted=("max_tokens",) if absent else (),
        )


def _json_part(info: RequestInfo, length: int) -> RequestInfo:
    return RequestInfo(info.scope, info.body[:length], path=info.path, max_json_values=info.max_json_values)


def _json_length(info: RequestInfo) -> int | None:
    """Bytes of JSON before the binary data; ``None`` where the body is JSON alone."""
    text = info.headers.get(_HEADER)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= len(info.body)):
        raise UnreadableBody(f"{_HEADER} must be a length within the body")
    return int(text)


def _infer(body: JSONObject, *, binary: int) -> Workload:
    inputs = body.fields.get("inputs")
    if type(inputs) is not list or not inputs:
        raise UnreadableBody("inputs must be a list of tensors")
    sizes = [_tensor_bytes(body, tensor) for tensor in inputs]
    total = max(sum(sizes), binary)
    return Workload(
        task="infer",
        tensor_bytes=capped(max(total, 1)),
        features={"tensors": float(len(sizes)), "largest_tensor_bytes": float(capped(max(sizes)))},
    )


def _tensor_bytes(body: JSONObject, tensor: Any) -> int:
    if type(tensor) is not dict:
        raise UnreadableBody("a tensor in inputs must be an object")
    parameters = settings_in(tensor, "parameters")
    elsewhere = max(
        whole(parameters.get(name), name) for name in ("binary_data_size", "shared_memory_byte_size")
    )
    kind, elements = tensor.get("datatype"), _elements(tensor.get("shape"))
    if kind == "BYTES":
        return max(elsewhere, _texts_bytes(body, tensor.get("data")), _LENGTH_PREFIX * elements)
    if type(kind) is not str or kind not in _BYTES_OF:
        raise UnreadableBody("datatype of a tensor in inputs is not known")
    return max(elsewhere, elements * _BYTES_OF[kind])


def _elements(shape: Any) -> int:
    """The product of the dimensions, which must be whole numbers; with a 0 the tensor is empty."""
    if type(shape) is not list or len(shape) > 64:
        raise UnreadableBody("shape of a tensor in inputs must be a list of dimensions")
    if not all(type(size) is int and size >= 0 for size in shape):
        raise UnreadableBody("a dimension in shape must be a whole number, and not negative")
    return capped(math.prod(capped(size) for size in shape))


def _texts_bytes(body: JSONObject, data: Any) -> int:
    """Bytes of texts with their length prefixes; at least those of their JSON."""
    if data is None:
        return 0
    count = len(data) if isinstance(data, (list, LongList)) else 1
    return body.json_size(data) + _LENGTH_PREFIX * count
