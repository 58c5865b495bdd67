"""The limit on new tokens in a body: reading it, and lowering it in place. Owns both.

A body may name it several times, or by several names: the largest counts when it is read,
and all are lowered. A name that an endpoint does not obey can only raise the charge, since that
server will use its default. Names, and where they stand, are up to the dialects.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gpu_admission.bodies.numbers import CEILING, whole
from gpu_admission.bodies.shorten import shorten
from gpu_admission.errors import UnreadableBody

_WHITE_SPACE = re.compile(r"[ \t\n\r]*")
_raw_decode = json.JSONDecoder().raw_decode


def read_limit(
    fields: Mapping[str, Any], names: Sequence[str], default: int, others: Sequence[str] = ()
) -> tuple[int, bool]:
    """The largest limit under ``names``, and whether ``default`` had to be used.

    A limit that means "no limit" (zero, negative) gives ``default`` too, and ``null`` counts as absent.
    ``others`` are names that this endpoint does not obey: they count only where they say more.
    """
    largest, said = _largest(fields, names, default)
    if not said:
        largest = max(largest, default)
    if others and not fields.keys().isdisjoint(others):
        largest = max(largest, _largest(fields, others, default)[0])
    return largest, not said


def _largest(fields: Mapping[str, Any], names: Sequence[str], default: int) -> tuple[int, bool]:
    largest, said = 0, False
    for name in names:
        if name not in fields or (value := fields[name]) is None:
            continue
        limit = value if type(value) is int and 0 < value <= CEILING else whole(value, name)
        limit_or_default = limit or default
        if limit_or_default > largest:
            largest = limit_or_default
        said = said or limit > 0
    return largest, said


def lower_limit(
    body: bytes,
    names: Sequence[str],
    most: int,
    *,
    places: Sequence[Sequence[str]] = ((),),
    others: Sequence[str] = (),
) -> bytes:
    """``body`` with no limit above ``most``; where there is none, the first name gets it.

    ``others`` are lowered too, but do not stand for a limit that is missing.

    ``places`` lead to the objects in which a limit may stand, each by the names of members;
    a new one is put in the first. Every other byte stays as it is. Raises
    ``UnreadableBody`` where the body is not a JSON object.
    """
    short = shorten(body)
    try:
        text = _lowered(short.text.decode("utf-8", "surrogateescape"), names, most, places)
        if others:
            text = _lowered(text, others, most, places, adds=False)
        lowered = short.restore(text.encode("utf-8", "surrogateescape"))
        return _encoded(lowered, json.detect_encoding(body))
    except (ValueError, IndexError, RecursionError) as error:
        raise UnreadableBody(f"the body is not a JSON object: {type(error).__name__}") from None


def unchanged(body: bytes, new_tokens: int) -> bytes:
    """``body`` as it is: the ``clamp`` of a dialect whose requests have no limit on new tokens."""
    return body


def _encoded(text: bytes, encoding: str) -> bytes:
    if encoding == "utf-8":
        return text
    return text.decode("utf-8", "surrogatepass").encode(encoding, "surrogatepass")


class _Member(NamedTuple):
    name: str
    value: Any
    start: int
    end: int


class _Edit(NamedTuple):
    start: int
    end: int
    text: str


def _lowered(
    text: str, names: Sequence[str], most: int, places: Sequence[Sequence[str]], *, adds: bool = True
) -> str:
    start = _skip(text, 0)
    fields, _ = _raw_decode(text, start)
    chosen = [place for place in places if _has_limit(fields, names, place)]
    if adds:
        chosen = chosen or list(places[:1])
    edits = sorted(edit for place in chosen for edit in _edits(text, start, names, most, place))
    pieces: list[str] = []
    done = 0
    for edit in edits:
        pieces += (text[done : edit.start], edit.text)
        done = edit.end
    return "".join([*pieces, text[done:]])


def _has_limit(fields: Any, names: Sequence[str], place: Sequence[str]) -> bool:
    for step in place:
        fields = fields.get(step) if type(fields) is dict else None
    return type(fields) is dict and not fields.keys().isdisjoint(names)


def _edits(text: str, start: int, names: Sequence[str], most: int, place: Sequence[str]) -> Iterator[_Edit]:
    """The edits that lower the limits in the object at ``start``, or where ``place`` leads from there."""
    wanted = place[:1] or names
    found = [member for member in _members(text, start) if member.name in wanted]
    if not found:
        yield _insertion(text, start, _object(names, most, place)[1:-1])
    for member in found:
        if place and type(member.value) is dict:
            yield from _edits(text, member.start, names, most, place[1:])
        elif place or not _is_at_most(member.value, most):
            lowered = _object(names, most, place[1:]) if place else str(most)
            yield _Edit(member.start, member.end, lowered)


def _object(names: Sequence[str], most: int, place: Sequence[str]) -> str:
    limit: Any = {names[0]: most}
    for name in reversed(place):
        limit = {name: limit}
    return json.dumps(limit)


def _is_at_most(value: Any, most: int) -> bool:
    try:
        return 0 < whole(value, "limit") <= most
    except UnreadableBody:
        return False


def _insertion(text: str, start: int, member: str) -> _Edit:
    """A first member in the object at ``start``."""
    comma = "" if text[_skip(text, start + 1)] == "}" else ", "
    return _Edit(start + 1, start + 1, member + comma)


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
