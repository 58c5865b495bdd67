"""A multipart body: the headers, sizes and first bytes of its parts. Owns the boundary search.

Content is searched for the next boundary and never copied beyond its first 64 KiB. The
search goes in windows, so that a large upload does not hold up other threads. What a part
means must not be put here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from gpu_admission.errors import UnreadableBody
from gpu_admission.request import Part

HEAD: Final = 64 * 1024
"""Bytes of each part that are kept."""
MOST_PARTS: Final = 2_000
"""Starlette's own limit: 1,000 files and 1,000 fields."""
_LONGEST_HEADERS = 16 * 1024
_WINDOW = 2 * 1024 * 1024
_TYPE = re.compile(r"\s*multipart/", re.IGNORECASE)
_PARAMETER = re.compile(r";\s*([\w!#$%&'*+.^`|~-]+)\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"|([^;\"]*))", re.ASCII)


def read_parts(body: bytes, content_type: str) -> tuple[Part, ...]:
    """The parts of ``body``. Raises ``UnreadableBody`` where it is not multipart, or has too many."""
    boundary = _parameters(content_type).get("boundary", "") if _TYPE.match(content_type) else ""
    if not 1 <= len(boundary) <= 200:
        raise UnreadableBody("the body is not multipart with a boundary")
    parts = tuple(
        _part(body, start, end) for start, end in _spans(body, boundary.encode("latin-1", "replace"))
    )
    if not parts:
        raise UnreadableBody("the multipart body has no parts")
    return parts


def part_text(part: Part) -> str:
    """The content of ``part`` as text of its size; behind its first 64 KiB only zeros."""
    return part.head.decode("utf-8", "replace") + "0" * (part.size - len(part.head))


def _spans(body: bytes, boundary: bytes) -> Iterator[tuple[int, int]]:
    """Where each part starts (its headers) and ends.

    A boundary stands at the start of the body or behind a line break, and ends with a line
    break or ``--``. Anything else is refused: readers differ in what they make of it.
    """
    mark = b"\r\n--" + boundary
    at = len(mark) - 2 if body.startswith(mark[2:]) else _behind(body, mark, 0)
    for _ in range(MOST_PARTS + 1):
        ending = body[at : at + 2] if at else b"--"
        if ending == b"--":
            return
        if ending != b"\r\n":
            raise UnreadableBody("a boundary of the multipart body does not end its line")
        following = _behind(body, mark, at)
        yield at + 2, following - len(mark) if following else len(body)
        at = following
    raise UnreadableBody(f"the multipart body has more than {MOST_PARTS} parts")


def _behind(body: bytes, mark: bytes, start: int) -> int:
    """The place behind the next ``mark``, or 0."""
    for at in range(start, len(body), _WINDOW):
        found = body.find(mark, at, at + _WINDOW + len(mark) - 1)
        if found >= 0:
            return found + len(mark)
    return 0


def _part(body: bytes, start: int, end: int) -> Part:
    blank = body.find(b"\r\n\r\n", start - 2, start + _LONGEST_HEADERS)
    if blank < 0 or blank > end:
        raise UnreadableBody("a part of the multipart body has no headers")
    headers = _headers(body[start:blank])
    disposition = _parameters(headers.get("content-disposition", ""))
    content = blank + 4
    size = max(end - content, 0)
    return Part(
        name=disposition.get("name", ""),
        filename=disposition.get("filename", disposition.get("filename*")),
        content_type=headers.get("content-type", ""),
        size=size,
        head=body[content : content + min(size, HEAD)],
    )


def _headers(block: bytes) -> dict[str, str]:
    lines = block.decode("utf-8", "replace").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _parameters(header: str) -> dict[str, str]:
    """``; name=value`` pairs behind a header's first word; of several with one name the last."""
    found: dict[str, Any] = {}
    for name, quoted, plain in _PARAMETER.findall(header):
        found[name.lower()] = quoted.replace('\\"', '"').replace("\\\\", "\\") or plain.strip()
    return found
