"""A body as an object of fields, whichever way it was sent. Owns the choice by content type.

Uploaded files are lists of ``Part`` under their field's name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from gpu_admission.bodies.json import JSONObject, read_object
from gpu_admission.bodies.multipart import MOST_PARTS, part_text
from gpu_admission.errors import UnreadableBody
from gpu_admission.request import Part

if TYPE_CHECKING:
    from gpu_admission.request import RequestInfo


def media_type(info: RequestInfo) -> str:
    """The content type of ``info`` in small letters, without parameters; empty where there is none."""
    return info.headers.get("content-type", "").partition(";")[0].strip().lower()


def read_form(info: RequestInfo) -> JSONObject:
    """The fields of a JSON object, a form or an upload. Raises ``UnreadableBody``."""
    kind = media_type(info)
    if kind == "multipart/form-data" or info.was_form:
        return JSONObject(_fields(info.parts), sum(part.size for part in info.parts))
    if kind == "application/x-www-form-urlencoded":
        return JSONObject(_form(info.body), len(info.body))
    return read_object(info)


def files(body: JSONObject) -> list[Part]:
    """All files that were uploaded."""
    return [
        part for value in body.fields.values() if type(value) is list for part in value if type(part) is Part
    ]


def _form(body: bytes) -> dict[str, Any]:
    """The last value under each name of a form."""
    try:
        text = body.decode("utf-8", "replace")
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_PARTS))
    except ValueError:
        raise UnreadableBody(f"the form has more than {MOST_PARTS} fields") from None


def _fields(parts: Sequence[Part]) -> dict[str, Any]:
    """The last text under each name, or all its files."""
    fields: dict[str, Any] = {}
    for part in parts:
        if part.filename is None:
            fields[part.name] = part_text(part)
        elif type(earlier := fields.get(part.name)) is list:
            earlier.append(part)
        else:
            fields[part.name] = [part]
    return fields
