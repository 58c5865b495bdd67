"""Long strings and long lists of numbers that were left out of a JSON body, and what is known of them.

A size takes one search at memory speed, a head only the first bytes; a whole string is decoded in
pieces, so that no call holds up other threads. ``shorten`` finds where they are in a body.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable, Iterator
from typing import Final

from gpu_admission.bodies.pace import give_way

PIECE: Final = 64 * 1024
"""Bytes that are decoded at once."""
_CODED: Final = 6
"""Bytes of an escape such as ``\\u00e9``; a surrogate pair takes two."""
_CHARACTER: Final = 4
_HIGH = re.compile(rb"\\u[dD][89abAB]")
_LOW = re.compile(rb"\\u[dD][c-fC-F]")


def windows(body: bytes, start: int, end: int, unit_end: Callable[[bytes, int, int], int]) -> Iterator[bytes]:
    """``body`` from ``start`` to ``end`` in pieces, other threads let in before each.

    ``unit_end(body, start, stop)`` is the last place up to ``stop`` that splits no character or escape.
    """
    while start < end:
        stop = start + PIECE
        stop = end if stop >= end else unit_end(body, start, stop)
        give_way()
        yield body[start:stop]
        start = stop


class LongString:
    """The content of a string between its quotes, as it stands in a JSON body."""

    __slots__ = ("_body", "_end", "_start")

    def __init__(self, body: bytes, start: int, end: int) -> None:
        self._body = body
        self._start = start
        self._end = end

    @property
    def length(self) -> int:
        """Bytes between the quotes, with escapes as they are written."""
        return self._end - self._start

    def raw(self) -> bytes:
        """The bytes between the quotes."""
        return self._body[self._start : self._end]

    @property
    def size(self) -> int:
        r"""Bytes of the decoded string in UTF-8, or a little more: a pair of ``\uXXXX`` counts as 6."""
        if self._body.find(b"\\", self._start, self._end) < 0:
            return self.length
        if self.length <= PIECE:
            return _decoded_size(self.raw())
        return sum(map(_decoded_size, self._windows()))

    def head(self, length: int) -> str:
        """The first ``length`` bytes, decoded; a broken last character is left out."""
        stop = min(self._start + length, self._end)
        if stop < self._end:
            stop = _unit_end(self._body, self._start, stop)
        return _text(self._body[self._start : stop])

    def pieces(self) -> Iterator[str]:
        """The decoded string, piece by piece."""
        return map(_text, self._windows())

    def _windows(self) -> Iterator[bytes]:
        """The bytes between the quotes, in pieces that split no character and no escape."""
        return windows(self._body, self._start, self._end, _unit_end)


class LongStrings:
    """The strings that were left out of a body, by their keys.

    Only places are kept until one is asked for: a hostile body may have as many strings as values.
    """

    __slots__ = ("_body", "_ends", "_prefix", "_starts")

    def __init__(self, body: bytes = b"", nonce: str = "") -> None:
        self._body = body
        self._prefix = f"{nonce}:"
        self._starts = array("Q")
        self._ends = array("Q")

    def add(self, start: int, end: int) -> str:
        """The key for what stands in the body from ``start`` to ``end``."""
        self._starts.append(start)
        self._ends.append(end)
        return f"{self._prefix}{len(self._starts) - 1}"

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def pattern(self) -> str:
        """A regular expression that matches the keys and nothing else."""
        return rf"{self._prefix}\d+"

    def get(self, text: str) -> LongString | None:
        """The string that ``text`` is the key of, if it is one."""
        if not self._starts or not text.startswith(self._prefix):
            return None
        number = int(text[len(self._prefix) :])
        return LongString(self._body, self._starts[number], self._ends[number])

    def find(self, text: str) -> list[tuple[str, LongString]]:
        """The keys that stand in ``text``, and their strings."""
        if not self._starts:
            return []
        keys = re.findall(self.pattern, text)
        return [(key, found) for key in keys if (found := self.get(key)) is not None]


class LongList:
    """A long list of numbers, of which only the count and the bytes are known."""

    __slots__ = ("_body", "_end", "_length", "_start")

    def __init__(self, body: bytes, start: int, end: int, length: int) -> None:
        self._body = body
        self._start = start
        self._end = end
        self._length = length

    @property
    def size(self) -> int:
        """Bytes of the list, brackets included, as it is written."""
        return self._end - self._start

    def raw(self) -> bytes:
        """The list as it is written."""
        return self._body[self._start : self._end]

    def __len__(self) -> int:
        return self._length


class LongLists:
    """The lists of numbers that were left out of a body. Their keys are numbers with a fraction."""

    __slots__ = ("_body", "_ends", "_lengths", "_prefix", "_starts")

    def __init__(self, body: bytes, nonce: str) -> None:
        self._body = body
        self._prefix = f"0.{nonce}"
        self._starts = array("Q")
        self._ends = array("Q")
        self._lengths = array("Q")

    def add(self, start: int, end: int, length: int) -> str:
        """The key for the list of ``length`` numbers from ``start`` to ``end``."""
        self._starts.append(start)
        self._ends.append(end)
        self._lengths.append(length)
        return f"{self._prefix}{len(self._starts) - 1}"

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def pattern(self) -> str:
        """A regular expression that matches the keys and nothing else."""
        return rf"{re.escape(self._prefix)}\d+"

    def get(self, number: str) -> LongList | None:
        """The list that ``number`` is the key of, if it is one."""
        if not number.startswith(self._prefix):
            return None
        at = int(number[len(self._prefix) :])
        return LongList(self._body, self._starts[at], self._ends[at], self._lengths[at])

    def read(self, number: str) -> float | LongList:
        """What ``number`` stands for: a list, or itself."""
        return self.get(number) or float(number)


def _unit_end(body: bytes, start: int, stop: int) -> int:
    """The last place up to ``stop`` at which neither an escape nor a UTF-8 character is split."""
    last = body.rfind(b"\\", max(start, stop - 2 * _CODED), stop)
    if last >= 0 and _begins_escape(body, start, last):
        pair = last - _CODED
        if last + (_CODED if body[last + 1] == ord("u") else 2) > stop:
            is_low = pair >= start and _LOW.match(body, last) and _HIGH.match(body, pair)
            return pair if is_low and _begins_escape(body, start, pair) else last
        if _HIGH.match(body, last) and _LOW.match(body, last + _CODED):
            return last
    for end in range(stop, max(start, stop - _CHARACTER), -1):
        if body[end] & 0xC0 != 0x80:
            return end
    return stop


def _begins_escape(body: bytes, start: int, at: int) -> bool:
    """Whether the backslash ``at`` begins an escape: it stands behind an even number of others."""
    before = body[start:at]
    return (len(before) - len(before.rstrip(b"\\"))) % 2 == 0


def _decoded_size(content: bytes) -> int:
    content = content.replace(b"\\\\", b"/")
    coded = content.count(b"\\u")
    two_bytes = sum(content.count(b"\\u0%d" % digit) for digit in range(8)) if coded else 0
    return len(content) - content.count(b"\\") - 2 * coded - two_bytes


def _text(raw: bytes) -> str:
    """``raw``, decoded as between quotes; invalid JSON is left as it is: the app refuses such a body."""
    try:
        text = raw.decode("utf-8", "surrogatepass")
        if "\\" in text:
            text = json.loads(f'"{text}"', strict=False)
    except ValueError:
        return raw.decode("utf-8", "replace")
    return text
