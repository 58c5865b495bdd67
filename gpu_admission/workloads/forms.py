"""Forms and uploads as objects of fields. Owns what a name that is sent twice means.

Uploaded files are lists of ``Part`` under their field's name. Of repeated numbers the largest
counts, and repeated texts are joined: some servers take the first, some the last, some all.
Which of several ways to read a body is taken must not be put here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from gpu_admission.bodies.json import JSONObject
from gpu_admission.bodies.multipart import MOST_PARTS, part_text
from gpu_admission.errors import UnreadableBody
from gpu_admission.request import Part

if TYPE_CHECKING:
    from gpu_admission.request import RequestInfo

_LONGEST_NUMBER = 32


def media_type(info: RequestInfo) -> str:
    """The content type of ``info`` in small letters, without parameters; empty where there is none."""
    return info.headers.get("content-type", "").partition(";")[0].strip().lower()


def read_form(body: bytes) -> JSONObject:
    """The fields of a form in a URL's encoding. Raises ``UnreadableBody``."""
    text = body.decode("utf-8", "replace")
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_PARTS)
    except ValueError:
        raise UnreadableBody(f"the form has more than {MOST_PARTS} fields") from None
    return JSONObject(_fields(pairs), len(body))


def read_parts(info: RequestInfo) -> JSONObject:
    """The fields and files of an upload. Raises ``UnreadableBody``."""
    pairs = ((part.name, part_text(part) if part.filename is None else part) for part in info.parts)
    return JSONObject(_fields(pairs), sum(part.size for part in info.parts))


def files(body: JSONObject) -> list[Part]:
    """All files that were uploaded."""
    return [
        part for value in body.fields.values() if type(value) is list for part in value if type(part) is Part
    ]


def _fields(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """What each name says in the end: all its files, or else its texts as one."""
    found: dict[str, list[Any]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return {name: _as_one(values) for name, values in found.items()}


def _as_one(values: list[Any]) -> Any:
    if len(values) == 1 and type(values[0]) is str:
        return values[0]
    texts = [value for value in values if type(value) is str]
    parts = [value for value in values if type(value) is Part]
    if not texts:
        return parts
    text = _largest_number(texts) or "\n".join(texts)
    return [*parts, text] if parts else text


def _largest_number(texts: list[str]) -> str | None:
    """The text of the largest number, where all are numbers."""
    try:
        numbers = {text: float(text[:_LONGEST_NUMBER]) for text in texts}
    except ValueError:
        return None
    return max(texts, key=lambda text: -math.inf if math.isnan(numbers[text]) else numbers[text])
