"""A JSON body, read for its sizes. Owns the readers, their order, and what they leave out.

Small bodies are parsed as they are. Of large ones the long strings (inline images, mostly)
are left out, which costs one search for their closing quote, and lists are parsed item by
item with a Python call between the items, so that other threads get the interpreter. What
a field means must not be put here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from gpu_admission.bodies.longstrings import LongString, cut_long_strings, find_keys
from gpu_admission.errors import UnreadableBody

if TYPE_CHECKING:
    from gpu_admission.request import RequestInfo

LARGE = 128 * 1024
"""Bodies of at least this many bytes are read in slices, without their long strings."""
_decode = msgspec.json.Decoder().decode
_SLICE = 1024 * 1024
_DEPTH = 3
_NONE_LONG: Mapping[str, LongString] = {}


class JSONObject:
    """The ``fields`` of a body, and the sizes of strings in it that were too long to read."""

    __slots__ = ("_long", "fields", "is_whole", "total")

    def __init__(
        self, fields: dict[str, Any], total: int, long: Mapping[str, LongString] = _NONE_LONG
    ) -> None:
        self.fields = fields
        self.total = total
        """Bytes of the whole body."""
        self.is_whole = not long
        """Whether no string was left out."""
        self._long = long

    def size(self, text: str) -> int:
        """Bytes of ``text`` in UTF-8, as the app will decode it; never less."""
        if self._long and (left_out := self._long.get(text)) is not None:
            return left_out.size
        return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))

    def head(self, text: str, length: int) -> str:
        """The first ``length`` characters of ``text``, or somewhat fewer."""
        left_out = self._long.get(text)
        return text[:length] if left_out is None else left_out.head(length)

    def whole(self, text: str) -> str:
        """All of ``text``, for those who can't do with its size."""
        left_out = self._long.get(text)
        return text if left_out is None else left_out.head(left_out.length)

    def json_size(self, value: Any) -> int:
        """Bytes of ``value`` as compact JSON, or twice the whole body where it can't be written."""
        try:
            written = msgspec.json.encode(value, enc_hook=_spaces)
        except (ValueError, OverflowError, RecursionError):
            return 2 * self.total
        if self.is_whole:
            return len(written)
        return len(written) + sum(self._long[key].length for key in find_keys(written.decode(), self._long))

    def json_text(self, value: Any) -> str:
        """``value`` as a template writes it: JSON with white space."""
        written = json.dumps(value, ensure_ascii=False, indent=4, default=_spaces)
        for key in find_keys(written, self._long):
            written = written.replace(key, self.whole(key))
        return written


class LongList:
    """A long list of numbers, of which only the count and the bytes are known."""

    __slots__ = ("_length", "size")

    def __init__(self, length: int, size: int) -> None:
        self._length = length
        self.size = size

    def __len__(self) -> int:
        return self._length


def read_object(info: RequestInfo, *, parse: Callable[[bytes], Any] | None = None) -> JSONObject:
    """The body of ``info``, which must be a JSON object. Raises ``UnreadableBody``.

    ``parse`` reads JSON in the way of a server that differs from Python's.
    """
    body = info.body
    if len(body) < LARGE:
        return _object((parse or parse_json)(body), len(body), _NONE_LONG)
    short, long = cut_long_strings(body)
    return _object((parse or _parse_sliced)(short), len(body), long)


def _object(fields: Any, total: int, long: Mapping[str, LongString]) -> JSONObject:
    if type(fields) is not dict:
        raise UnreadableBody("the body must be a JSON object")
    return JSONObject(fields, total, long)


def parse_json(body: bytes) -> Any:
    """The parsed ``body``: msgspec first, then ``json`` for what only that accepts.

    Raises ``UnreadableBody`` where Python's ``json`` would raise.
    """
    try:
        return _decode(body)
    except (ValueError, RecursionError):
        pass
    return parse_with(json.loads, body)


def parse_with(loads: Callable[[bytes], Any], body: bytes) -> Any:
    """``body`` read by ``loads``, a form of ``json.loads``. Raises ``UnreadableBody``."""
    try:
        return loads(body)
    except (ValueError, RecursionError) as error:
        raise UnreadableBody(f"the body is not JSON: {type(error).__name__}") from None


def _parse_sliced(body: bytes) -> Any:
    try:
        return _parse_slices(memoryview(body.lstrip()), _DEPTH)
    except (ValueError, RecursionError):
        return parse_with(partial(json.loads, object_hook=_as_found), body)


def _parse_slices(raw: memoryview, depth: int) -> Any:
    kind = bytes(raw[:1]) if len(raw) >= _SLICE and depth else b""
    if kind == b"{":
        members = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        return {name: _parse_slices(memoryview(value), depth - 1) for name, value in members.items()}
    if kind == b"[":
        return _parse_list(raw)
    return msgspec.json.decode(raw)


def _parse_list(raw: memoryview) -> Any:
    text = bytes(raw)
    if b'"' not in text and text.rfind(b"[") == 0 and b"{" not in text:
        return LongList(text.count(b",") + 1, len(text))
    return msgspec.json.decode(raw, type=list[_AnyValue], dec_hook=_as_it_is)


class _Anything(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return True


class _AnyValue(metaclass=_Anything):
    """Any JSON value. msgspec calls ``_as_it_is`` for each, where threads may be switched."""


def _as_it_is(_type: type, value: object) -> object:
    return value


def _as_found(fields: dict[str, Any]) -> dict[str, Any]:
    """Called by ``json`` for each object, for the same reason."""
    return fields


def _spaces(value: Any) -> str:
    """Stands for a ``LongList`` where a value is written again."""
    return " " * value.size if type(value) is LongList else ""
