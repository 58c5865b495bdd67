"""Forms and uploads as objects of fields. Owns what a name that is sent twice means.

Uploaded files are lists of ``Part`` under their field's name. Of repeated numbers the largest
counts, and repeated texts are joined: some servers take the first, some the last, some all.
Which of several ways to read a body is taken must not be put here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from gpu_admission.bodies.formvalues import FormString, FormStrings, LeftOut, Lines, PartString, decoded
from gpu_admission.bodies.json import JSONObject
from gpu_admission.bodies.multipart import MOST_PARTS, part_text
from gpu_admission.bodies.shorten import LONG
from gpu_admission.errors import UnreadableBody
from gpu_admission.request import Part

if TYPE_CHECKING:
    from gpu_admission.request import RequestInfo

_LONGEST_NUMBER = 32
_LONGEST_NAME = 256
"""A longer name is read only this far: no known field has such a name."""


def media_type(info: RequestInfo) -> str:
    """The content type of ``info`` in small letters, without parameters; empty where there is none."""
    return info.headers.get("content-type", "").partition(";")[0].strip().lower()


def read_form(body: bytes, marks: bytes = b"&") -> JSONObject:
    """The fields of a form in a URL's encoding, which ``marks`` separate. Raises ``UnreadableBody``."""
    strings = FormStrings()
    fields = _fields(_pairs(body, marks), strings)
    return JSONObject(fields, len(body), strings, not strings)


def _pairs(body: bytes, marks: bytes) -> Iterator[tuple[str, Any]]:
    """Names and values, one after the other: those that are long are not decoded yet."""
    at = 0
    for count, end in enumerate(_ends(body, marks)):
        if count >= MOST_PARTS:
            raise UnreadableBody(f"the form has more than {MOST_PARTS} fields")
        if end > at:
            yield _pair(body, at, end)
        at = end + 1


def _ends(body: bytes, marks: bytes) -> Iterator[int]:
    """Where each field ends. Each mark is looked for once."""
    places = {mark: body.find(mark) for mark in marks}
    while places := {mark: place for mark, place in places.items() if place >= 0}:
        mark = min(places, key=places.__getitem__)
        yield places[mark]
        places[mark] = body.find(mark, places[mark] + 1)
    yield len(body)


def _pair(body: bytes, start: int, end: int) -> tuple[str, Any]:
    equals = body.find(b"=", start, end)
    equals = end if equals < 0 else equals
    name = FormString(body, start, equals).head(_LONGEST_NAME)
    value = min(equals + 1, end)
    if end - value > LONG:
        return name, FormString(body, value, end)
    return name, decoded(body[value:end])


def read_parts(info: RequestInfo) -> JSONObject:
    """The fields and files of an upload. Raises ``UnreadableBody``."""
    strings = FormStrings()
    pairs = ((part.name, part if part.filename is not None else _part_text(part)) for part in info.parts)
    fields = _fields(pairs, strings)
    return JSONObject(fields, sum(part.size for part in info.parts), strings, not strings)


def _part_text(part: Part) -> str | LeftOut:
    return PartString(part) if part.size > LONG else part_text(part)


def files(body: JSONObject) -> list[Part]:
    """All files that were uploaded."""
    return [
        part for value in body.fields.values() if type(value) is list for part in value if type(part) is Part
    ]


def _fields(pairs: Iterable[tuple[str, Any]], strings: FormStrings) -> dict[str, Any]:
    """What each name says in the end: all its files, or else its texts as one."""
    found: dict[str, list[Any]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return {name: _as_one(values, strings) for name, values in found.items()}


def _as_one(values: list[Any], strings: FormStrings) -> Any:
    if len(values) == 1 and type(values[0]) is str:
        return values[0]
    texts = [value for value in values if type(value) is not Part]
    parts = [value for value in values if type(value) is Part]
    if not texts:
        return parts
    text = _text(texts, strings)
    return [*parts, text] if parts else text


def _text(texts: list[str | LeftOut], strings: FormStrings) -> str:
    """All ``texts`` as one, or the largest number, where all are numbers."""
    short = [text for text in texts if isinstance(text, str)]
    if len(short) == len(texts) and sum(map(len, short)) <= LONG:
        return _largest_number(short) or "\n".join(short)
    return strings.add(Lines(texts))


def _largest_number(texts: list[str]) -> str | None:
    """The text of the largest number, where all are numbers."""
    try:
        numbers = {text: float(text[:_LONGEST_NUMBER]) for text in texts}
    except ValueError:
        return None
    return max(texts, key=lambda text: -math.inf if math.isnan(numbers[text]) else numbers[text])
