"""A multipart body: the headers, sizes and first bytes of its parts. Owns the boundary search.

Content is searched for the next boundary; at most the first 64 KiB of a part are copied, and 8 MiB
of all parts together. The search goes in windows, so that a large upload does not hold up other
threads. What a part means must not be put here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from gpu_admission.bodies.pace import give_way
from gpu_admission.errors import UnreadableBody

HEAD: Final = 64 * 1024
"""Bytes of each part that are kept."""
ALL_HEADS: Final = 8 * 1024 * 1024
"""Bytes that are kept of all parts together; beyond that, only ``SHORT_HEAD`` of each part."""
SHORT_HEAD: Final = 1024
MOST_PARTS: Final = 2_000
"""Starlette's own limit: 1,000 files and 1,000 fields."""
_LONGEST_HEADERS = 16 * 1024
_WINDOW = 2 * 1024 * 1024
_TYPE = re.compile(
    r"\s*multipart/[\w.+-]++((?:\s*+;\s*+[\w!#$%&'*+.^`|~-]++=(?:\"[^\"\\]*+\"|[^\s;\",]++))*+)\s*+;?\s*+",
    re.IGNORECASE | re.ASCII,
)
_BOUNDARY = re.compile(r";\s*boundary(\*[^=]*=|=)(\"[^\"]*\"|[^\s;]*)", re.IGNORECASE)
_TOKEN = re.compile(r"\"([\w'()+,./:=?-]{1,200})\"|([\w'()+./:=?-]{1,200})", re.ASCII)
_PARAMETER = re.compile(r";\s*([\w!#$%&'*+.^`|~-]+)\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"|([^;\"]*))", re.ASCII)

_ESCAPE = re.compile(r'(?:[^\\]|\\["\\])*+\\[^"\\]')
"""A backslash before anything but a quote or another."""
_FOLDS = (" ", "\t")


class Part(msgspec.Struct, frozen=True):
    """One part of a multipart body: its headers' facts, its size, and its first bytes."""

    name: str
    filename: str | None
    content_type: str
    size: int
    head: bytes
    """At most the first 64 KiB of its content."""


def read_parts(body: bytes, content_type: str) -> tuple[Part, ...]:
    """The parts of ``body``. Raises ``UnreadableBody`` where it is not multipart, or has too many."""
    parts: list[Part] = []
    kept = 0
    for start, end in _spans(body, _boundary(content_type)):
        parts.append(_part(body, start, end, HEAD if kept < ALL_HEADS else SHORT_HEAD))
        kept += len(parts[-1].head)
    if not parts:
        raise UnreadableBody("the multipart body has no parts")
    return tuple(parts)


def part_text(part: Part) -> str:
    """The content of ``part`` as text of its full size; beyond its first 64 KiB only zeros."""
    return part.head.decode("utf-8", "replace") + "0" * (part.size - len(part.head))


def _boundary(content_type: str) -> bytes:
    """The boundary, if the header leaves no doubt about it.

    Frameworks differ in how they read two boundaries, one that is quoted in part or contains white
    space, and RFC 2231's ``boundary*``: a client could show each of them a different body.
    """
    header = _TYPE.fullmatch(content_type)
    values = [] if header is None else _BOUNDARY.findall(header[1])
    if len(values) != 1 or values[0][0] != "=" or not (token := _TOKEN.fullmatch(values[0][1])):
        raise UnreadableBody("the body is not multipart with one plain boundary")
    return (token[1] or token[2]).encode()


def _spans(body: bytes, boundary: bytes) -> Iterator[tuple[int, int]]:
    """Where each part starts (its headers) and ends.

    A boundary stands at the start of the body or after a line break, and ends with a line break
    or ``--``. Anything else is refused: readers differ in how they read it.
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
        give_way()
        found = body.find(mark, at, at + _WINDOW + len(mark) - 1)
        if found >= 0:
            return found + len(mark)
    return 0


def _part(body: bytes, start: int, end: int, most: int) -> Part:
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
        head=body[content : content + min(size, most)],
    )


def _headers(block: bytes) -> dict[str, str]:
    """The headers of a part. Raises ``UnreadableBody`` for those that frameworks read differently."""
    found: dict[str, str] = {}
    for line in block.decode("utf-8", "replace").split("\r\n"):
        name, _, value = line.partition(":")
        name = name.strip().lower()
        if line[:1] in _FOLDS or name in found:
            raise UnreadableBody("a part of the multipart body has a header twice, or one in several lines")
        if name:
            found[name] = value.strip()
    return found


def _parameters(header: str) -> dict[str, str]:
    """The ``; name=value`` pairs after a header's first word.

    For a repeated name some frameworks take the first, some the last, some decode RFC 2231's forms:
    any doubt about which field a part is raises ``UnreadableBody``.
    """
    found: dict[str, Any] = {}
    for name, quoted, plain in _PARAMETER.findall(header):
        name = name.lower()
        is_doubtful = name.startswith("name*") or (name == "name" and _ESCAPE.match(quoted) is not None)
        if name in found or is_doubtful:
            raise UnreadableBody("a part of the multipart body does not say its name in one plain way")
        found[name] = quoted.replace('\\"', '"').replace("\\\\", "\\") or plain.strip()
    return found
