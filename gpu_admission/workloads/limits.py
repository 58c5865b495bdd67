"""The limit on new tokens in a body: reading it, and lowering it in place. Owns both.

A body may name it several times, or by several names: the largest counts when it is read,
and all are lowered. Names, and where they stand, are the dialects'.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gpu_admission.errors import UnreadableBody
from gpu_admission.workloads.longstrings import cut_long_strings, restore
from gpu_admission.workloads.numbers import CEILING, whole

_WHITE_SPACE = re.compile(r"[ \t\n\r]*")
_raw_decode = json.JSONDecoder().raw_decode


def read_limit(fields: Mapping[str, Any], names: Sequence[str], default: int) -> tuple[int, bool]:
    """The largest limit under ``names``, and whether ``default`` had to be taken.

    A limit that says "no limit" (zero, negative) is ``default`` too, and ``null`` is silent.
    """
    largest, said = 0, False
    for name in names:
        if name not in fields or (value := fields[name]) is None:
            continue
        limit = value if type(value) is int and 0 < value <= CEILING else whole(value, name)
        largest = max(largest, limit or default)
        said = said or limit > 0
    return (largest, False) if said else (max(largest, default), True)


def lower_limit(
    body: bytes, names: Sequence[str], most: int, *, places: Sequence[Sequence[str]] = ((),)
) -> bytes:
    """``body`` with no limit above ``most``; where there is none, the first name gets it.

    ``places`` lead to the objects in which a limit may stand, each by the names of members;
    a new one is put in the first. Every other byte stays as it is. Raises
    ``UnreadableBody`` where the body is not a JSON object.
    """
    short, strings = cut_long_strings(body)
    try:
        encoding = json.detect_encoding(short)
        errors = "surrogateescape" if encoding == "utf-8" else "strict"
        lowered = _lowered_all(short.decode(encoding, errors), names, most, places).encode(encoding, errors)
    except (ValueError, IndexError, RecursionError) as error:
        raise UnreadableBody(f"the body is not a JSON object: {type(error).__name__}") from None
    return restore(lowered, strings)


class _Member(NamedTuple):
    name: str
    value: Any
    start: int
    end: int


def _lowered_all(text: str, names: Sequence[str], most: int, places: Sequence[Sequence[str]]) -> str:
    start = _skip(text, 0)
    fields, _ = _raw_decode(text, start)
    for place in [place for place in places if _has_limit(fields, names, place)] or places[:1]:
        text = _lowered(text, start, names, most, place)
    return text


def _has_limit(fields: Any, names: Sequence[str], place: Sequence[str]) -> bool:
    for step in place:
        fields = fields.get(step) if type(fields) is dict else None
    return type(fields) is dict and not fields.keys().isdisjoint(names)


def _lowered(text: str, start: int, names: Sequence[str], most: int, inside: Sequence[str]) -> str:
    """``text`` with the limits lowered in the object at ``start``, or in its member ``inside``."""
    if not inside:
        return _with_limit(text, start, names, most)
    parents = [member for member in _members(text, start) if member.name == inside[0]]
    if not parents:
        return _inserted(text, start, f"{json.dumps(inside[0])}: {_object(names, most, inside[1:])}")
    for parent in reversed(parents):
        if type(parent.value) is dict:
            text = _lowered(text, parent.start, names, most, inside[1:])
        else:
            text = text[: parent.start] + _object(names, most, inside[1:]) + text[parent.end :]
    return text


def _object(names: Sequence[str], most: int, inside: Sequence[str]) -> str:
    limit: Any = {names[0]: most}
    for name in reversed(inside):
        limit = {name: limit}
    return json.dumps(limit)


def _with_limit(text: str, start: int, names: Sequence[str], most: int) -> str:
    limits = [member for member in _members(text, start) if member.name in names]
    if not limits:
        return _inserted(text, start, f"{json.dumps(names[0])}: {most}")
    for limit in reversed(limits):
        if not _is_at_most(limit.value, most):
            text = f"{text[: limit.start]}{most}{text[limit.end :]}"
    return text


def _is_at_most(value: Any, most: int) -> bool:
    try:
        return 0 < whole(value, "limit") <= most
    except UnreadableBody:
        return False


def _inserted(text: str, start: int, member: str) -> str:
    """``text`` with a first member in the object at ``start``."""
    comma = "" if text[_skip(text, start + 1)] == "}" else ", "
    return f"{text[: start + 1]}{member}{comma}{text[start + 1 :]}"


def _members(text: str, start: int) -> Iterator[_Member]:
    """The members of the object at ``start``, in order, repeated ones too. It must be well formed."""
    if text[start] != "{":
        raise ValueError("not an object")
    at = _skip(text, start + 1)
    while text[at] != "}":
        name, at = _raw_decode(text, at)
        begin = _skip(text, _skip(text, at) + 1)
        value, end = _raw_decode(text, begin)
        yield _Member(name, value, begin, end)
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    """The next place behind white space."""
    match = _WHITE_SPACE.match(text, at)
    return at if match is None else match.end()
