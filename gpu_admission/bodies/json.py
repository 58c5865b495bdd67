"""A JSON body, read for its sizes. Owns the readers, their order, and what they leave out.

Small bodies are parsed as they are, large ones after they have been shortened. What a field
means must not be put here.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from gpu_admission.bodies.formvalues import FormStrings, LeftOut
from gpu_admission.bodies.longvalues import PIECE, LongList, LongStrings
from gpu_admission.bodies.pace import give_way
from gpu_admission.bodies.shorten import shorten
from gpu_admission.errors import UnreadableBody

__all__ = ["LARGE", "MAX_JSON_VALUES", "JSONObject", "LongList", "largest", "parse_json", "read_object"]

LARGE: Final = 128 * 1024
"""Bodies of at least this many bytes are made short before they are parsed."""
MAX_JSON_VALUES: Final = 100_000
"""The most values that are parsed unless a setting says otherwise: some 30 ms, and 10 MB of values."""
Pairs: TypeAlias = Callable[[list[tuple[str, Any]]], dict[str, Any]]
_Number: TypeAlias = Callable[[str], Any] | None
_decode = msgspec.json.Decoder().decode
_NONE_LONG: Final = LongStrings()
_WIDEST = 4
"""JSON with white space is written up to this many times the body's bytes, and always up to ``_ALWAYS``."""
_ALWAYS = 64 * 1024
_INDENT = 4
_LONGEST_NUMBER = 400
_NAME = re.compile(rb'"[ \t\r\n]*:')
"""Behind each name, and behind some quotes in strings."""


class HasBody(Protocol):
    """What a body is read from."""

    max_json_values: int

    @property
    def body(self) -> bytes: ...


class JSONObject(msgspec.Struct, eq=False):
    """The ``fields`` of a body, and the sizes of strings in it that were too long to read."""

    fields: dict[str, Any]
    total: int
    """Bytes of the whole body."""
    _long: LongStrings | FormStrings = _NONE_LONG
    is_whole: bool = True
    """Whether no string was left out."""

    def __repr__(self) -> str:
        return f"<JSONObject of {self.total} bytes>"  # never what a client wrote

    def size(self, text: str) -> int:
        """Bytes of ``text`` in UTF-8, as the app will decode it; never less."""
        if not self.is_whole and (left_out := self._long.get(text)) is not None:
            return left_out.size
        if text.isascii():
            return len(text)
        return sum(len(piece.encode("utf-8", "surrogatepass")) for piece in self.pieces(text))

    def leave_out(self, text: LeftOut) -> str:
        """A key that stands for ``text`` in all questions asked here."""
        if type(self._long) is not FormStrings:
            self._long = FormStrings()
        self.is_whole = False
        return self._long.add(text)

    def head(self, text: str, length: int) -> str:
        """The first ``length`` characters of ``text``, or somewhat fewer."""
        left_out = self._long.get(text)
        return text[:length] if left_out is None else left_out.head(length)

    def pieces(self, text: str) -> Iterator[str]:
        """All of ``text`` in pieces of up to 64 Ki characters; none of an empty one."""
        left_out = self._long.get(text)
        if left_out is not None:
            return left_out.pieces()
        return _cut(text)

    def whole(self, text: str) -> str:
        """All of ``text``, for callers that need more than its size."""
        left_out = self._long.get(text)
        return text if left_out is None else "".join(left_out.pieces())

    def json_size(self, value: Any) -> int:
        """Bytes of ``value`` as compact JSON, or twice the whole body where it can't be written."""
        lists: list[LongList] = []
        try:
            written = msgspec.json.encode(value, enc_hook=lists.append)
        except (ValueError, OverflowError, RecursionError):
            return 2 * self.total
        size = len(written) + sum(found.size for found in lists if type(found) is LongList)
        if self.is_whole:
            return size
        return size + sum(string.length for _, string in self._long.find(written.decode()))

    def spaced_size(self, value: Any) -> int:
        """At least the bytes of ``value`` as JSON in lines, indented by 4; what a template may write."""
        return self.json_size(value) + _white_space(value)

    def json_text(self, value: Any) -> str | None:
        """``value`` as a template writes it: JSON with white space. ``None`` where that is far too long.

        Lists in lists take as much white space as they are deep: 200 kB of them become 700 MiB.
        """
        if self.spaced_size(value) > max(_WIDEST * self.total, _ALWAYS):
            return None
        written = json.dumps(value, ensure_ascii=False, indent=_INDENT, default=_spaces)
        for key, string in self._long.find(written):
            written = written.replace(key, "".join(string.pieces()))
        return written


def _cut(text: str) -> Iterator[str]:
    for at in range(0, len(text), PIECE):
        give_way()
        yield text[at : at + PIECE]


def read_object(request: HasBody, *, repeats: Pairs | None = None) -> JSONObject:
    """The body of ``request``, which must be a JSON object. Raises ``UnreadableBody``.

    If an object has a name twice the last value counts, or what ``repeats`` makes of the pairs.
    """
    body, most = request.body, request.max_json_values
    size = len(body)
    if size < LARGE and size <= most:
        return _object(_parse(body, repeats), size, _NONE_LONG)
    short = shorten(body, most)
    return _object(
        _parse(short.text, repeats, short.lists.read if short.lists else None), len(body), short.strings
    )


def parse_json(body: bytes, most: int = MAX_JSON_VALUES) -> Any:
    """The parsed ``body``, whole. Raises ``UnreadableBody`` where Python's ``json`` would raise.

    ``TooComplex`` is raised for more than ``most`` values, those of lists of numbers included.
    """
    if len(body) < LARGE and len(body) <= most:
        return _parse(body)
    short = shorten(body, most, lists=False)
    value = _parse(short.text)
    return _put_back(value, short.strings) if short.strings else value


def largest(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """``pairs`` as an object; of a name's values the largest, for servers that take the first.

    Raises ``UnreadableBody`` where one of several is a list or an object: neither the longer nor all of
    them together would be the larger for every server.
    """
    found: dict[str, Any] = {}
    for name, value in pairs:
        found[name] = larger(found[name], value) if name in found else value
    return found


_INSIDE = (dict, list, LongList)


def larger(one: Any, other: Any) -> Any:
    """The larger of two values of a name. Raises as ``largest``."""
    if isinstance(one, _INSIDE) or isinstance(other, _INSIDE):
        if one == other:
            return one
        raise UnreadableBody("a name stands there twice, and not for the same list or object")
    return max(one, other, key=_rank)


def _object(fields: Any, total: int, long: LongStrings) -> JSONObject:
    if type(fields) is not dict:
        raise UnreadableBody("the body must be a JSON object")
    return JSONObject(fields, total, long, long is _NONE_LONG or not long)


def _parse(text: bytes, repeats: Pairs | None = None, number: _Number = None) -> Any:
    """msgspec first, then ``json`` for what only ``json`` accepts, or if a name is repeated."""
    try:
        value = _decode(text) if number is None else msgspec.json.Decoder(float_hook=number).decode(text)
        if repeats is None or len(_NAME.findall(text)) == _count_names(value):
            return value
    except (ValueError, RecursionError):
        pass
    try:
        return json.loads(text, object_pairs_hook=repeats, parse_float=number)
    except (ValueError, RecursionError) as error:
        why = type(error).__name__
    # Not raised from that error, which has the whole text in it.
    raise UnreadableBody(f"the body is not JSON: {why}")


def _count_names(value: Any) -> int:
    """How many names there are: those that were read, less one for each repetition."""
    count = 0
    pending = [value]
    while pending:
        value = pending.pop()
        if type(value) is dict:
            count += len(value)
            pending += value.values()
        elif type(value) is list and value and type(value[0]) in (dict, list):
            pending += value
    return count


def _rank(value: Any) -> tuple[float, int]:
    """Numbers by their size; anything else by the bytes that it takes."""
    if value is None or value != value:
        return (0.0, 0)
    if isinstance(value, str) and len(value) <= _LONGEST_NUMBER:
        with contextlib.suppress(ValueError):
            value = float(value)  # some servers read a text of digits as a number
    if value != value:
        return (0.0, 0)
    if isinstance(value, (int, float)):
        return (float(value) if abs(value) < 2**53 else 2.0**53, 0)
    return (0.0, JSONObject({}, 2**53).json_size(value))


def _put_back(value: Any, strings: LongStrings) -> Any:
    """``value`` with the strings that were left out put back, in names too."""
    holder = [value]
    pending: list[Any] = [holder]
    while pending:
        node = pending.pop()
        if type(node) is dict and any(map(strings.get, node)):
            members = [(_whole(name, strings), item) for name, item in node.items()]
            node.clear()
            node.update(members)
        for key, item in node.items() if type(node) is dict else enumerate(node):
            if type(item) is str:
                node[key] = _whole(item, strings)
            elif type(item) is dict or type(item) is list:
                pending.append(item)
    return holder[0]


def _whole(text: str, strings: LongStrings) -> str:
    left_out = strings.get(text)
    return text if left_out is None else "".join(left_out.pieces())


def _white_space(value: Any) -> int:
    """Bytes of white space where each value has its own line, indented by its depth."""
    total = 0
    pending = [(value, 1)]
    while pending:
        value, depth = pending.pop()
        if type(value) is dict or type(value) is list:
            line = _INDENT * depth + 2
            total += line * (len(value) + 1)
            items = value.values() if type(value) is dict else value
            pending += [(item, depth + 1) for item in items if type(item) in (dict, list)]
        elif type(value) is LongList:
            total += (_INDENT * depth + 2) * (len(value) + 1)
    return total


def _spaces(value: Any) -> str:
    """Stands for a ``LongList`` where a value is written again."""
    return " " * value.size if type(value) is LongList else ""
