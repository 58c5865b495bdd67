"""A large JSON body shortened before it is parsed. Owns the search, and the bound on values.

A parser holds the interpreter until it is done, and makes values of many times a body's bytes. So
its long strings (prose, inline images) and long lists of numbers (token ids, tensors) are left out
first: each is replaced by a key. What remains is counted, and refused if it is too much. All of this
takes time linear in the body's length, in many short steps between which other threads may run.
"""

from __future__ import annotations

import codecs
import io
import json
import re
import secrets
from collections.abc import Iterator
from typing import Final

import msgspec

from gpu_admission.bodies.longvalues import LongLists, LongStrings
from gpu_admission.bodies.pace import give_way
from gpu_admission.errors import TooComplex, UnreadableBody

LONG: Final = 64 * 1024
"""Bytes of a string that is left out."""
EASY: Final = 2 * 1024 * 1024
"""In bodies above this size, strings above ``LESS_LONG`` are left out too: else 64 MiB would remain."""
LESS_LONG: Final = 256
"""Longer than any field's name, even one with each letter written as ``\\uXXXX``."""
BYTES_OF_A_VALUE: Final = 64
"""Every so many bytes that remain count as one more value."""
_LIST = 256
_GAP = 4 * 1024
_SOMETHING_LONG = re.compile(rb'(?:^|")[^"]{%d}' % _GAP)
_WINDOW = 64 * 1024
_NUMBERS = b"0123456789+-.eE, \t\r\n"
_BACKSLASH = ord("\\")
_NONCE_DIGITS = 40


class Short(msgspec.Struct, frozen=True):
    """A body's ``text`` with keys for what was left out, and what those keys stand for.

    A string's key is longer than what ``content`` takes for a word; a list's key is a number. Neither
    can be guessed, so no body can contain one by itself.
    """

    text: bytes
    strings: LongStrings
    lists: LongLists

    def restore(self, text: bytes) -> bytes:
        """``text``, made from this one, with what was left out."""
        strings, lists = self.strings, self.lists
        pieces = re.split(rf"({strings.pattern}|{lists.pattern})".encode(), text)
        for at in range(1, len(pieces), 2):
            key = pieces[at].decode()
            left_out = strings.get(key) or lists.get(key)
            pieces[at] = pieces[at] if left_out is None else left_out.raw()
        return b"".join(pieces)


def shorten(body: bytes, most: int | None = None, *, lists: bool = True) -> Short:
    """``body`` without its long strings and, with ``lists``, its long lists of numbers.

    Raises ``TooComplex`` where more than ``most`` values remain, and ``UnreadableBody`` where a
    string has no end.
    """
    body = _as_utf8(body)
    most = 2 * len(body) if most is None else most
    cut = _Cut(body, most)
    give_way()
    if len(body) <= EASY and _is_short(body, most):
        return cut.short()
    longest = LONG if len(body) <= EASY else LESS_LONG
    at = 0
    for start, end in _strings(body, most):
        if lists and start - at > _GAP:
            cut.lists_between(at, start)
        if end - start > longest:
            cut.string(start, end)
        at = end + 1
    if lists and len(body) - at > _GAP:
        cut.lists_between(at, len(body))
    return cut.short()


class _Cut:
    """What remains of a body, piece by piece, and what was taken out of it."""

    __slots__ = ("_body", "_done", "_kept", "_lists", "_most", "_pieces", "_seen", "_strings")

    def __init__(self, body: bytes, most: int) -> None:
        nonce = str(secrets.randbelow(10**_NONCE_DIGITS)).zfill(_NONCE_DIGITS)
        self._body = body
        self._most = most
        self._strings = LongStrings(body, nonce)
        self._lists = LongLists(body, nonce)
        self._pieces: list[bytes] = []
        self._done = self._kept = self._seen = 0

    def string(self, start: int, end: int) -> None:
        """Leave out the content of a string."""
        self._replace(start, end, self._strings.add(start, end))

    def lists_between(self, start: int, end: int) -> None:
        """Leave out the long lists of numbers between two strings."""
        while (closing := self._body.find(b"]", start, end)) >= 0:
            self._seen += 1
            if self._seen > self._most:
                raise _too_complex(self._most)
            opening = self._body.rfind(b"[", start, closing)
            start = closing + 1
            if opening < 0 or closing - opening < _LIST:
                continue
            if length := _length(self._body, opening + 1, closing):
                self._replace(opening, start, self._lists.add(opening, start, length))

    def short(self) -> Short:
        """What remains, if it is not too much."""
        rest = len(self._body) - self._done
        if self._kept + rest > self._most * BYTES_OF_A_VALUE:
            raise _too_complex(self._most)
        text = b"".join((*self._pieces, self._body[self._done :])) if self._pieces else self._body
        _check_values(text, self._most)
        return Short(text, self._strings, self._lists)

    def _replace(self, start: int, end: int, key: str) -> None:
        self._kept += start - self._done + len(key)
        if self._kept > self._most * BYTES_OF_A_VALUE:
            raise _too_complex(self._most)
        self._pieces += (self._body[self._done : start], key.encode())
        self._done = end


def _is_short(body: bytes, most: int) -> bool:
    """Whether ``body`` certainly has no long string and no long list: a check at memory speed."""
    quotes = body.count(b'"')
    if quotes > 2 * most or quotes % 2 or body.find(b'\\"') >= 0:
        return False
    return _SOMETHING_LONG.search(body) is None


def _check_values(text: bytes, most: int) -> None:
    """Raises ``TooComplex``. Strings are looked at only where counting through them finds too much."""
    left = most - len(text) // BYTES_OF_A_VALUE
    if _values(text) > left and _values(_outside(text, most)) > left:
        raise _too_complex(most)


def _values(text: bytes) -> int:
    """At least as many as the values and names in ``text``: each has one of these marks next to it."""
    return sum(map(text.count, (b",", b":", b"[", b"{")))


def _outside(text: bytes, most: int) -> bytes:
    """``text`` without its strings."""
    pieces: list[bytes] = []
    at = 0
    for start, end in _strings(text, most):
        pieces.append(text[at:start])
        at = end + 1
    pieces.append(text[at:])
    return b"".join(pieces)


def _strings(body: bytes, most: int) -> Iterator[tuple[int, int]]:
    """Where the content of each string starts and ends. Raises ``TooComplex`` behind ``most``."""
    at = seen = 0
    while (start := body.find(b'"', at) + 1) > 0:
        end = body.find(b'"', start)
        if end > 0 and body[end - 1] == _BACKSLASH:
            end = _closing_quote(body, start)
        if end < 0:
            raise UnreadableBody("the body is not JSON: a string has no end")
        seen += 1
        if seen > most:
            raise _too_complex(most)
        yield start, end
        at = end + 1


def _closing_quote(body: bytes, at: int) -> int:
    """The quote that ends the string which has its content from ``at`` on, or -1.

    Escapes are blanked out first, in growing windows: most strings are short.
    """
    size = 256
    while at < len(body):
        give_way()
        window = body[at : at + size]
        size = min(2 * size, _WINDOW)
        window = window.replace(b"\\\\", b"__").replace(b'\\"', b"__")
        found = window.find(b'"')
        if found >= 0:
            return at + found
        at += len(window) - window.endswith(b"\\")
        if len(window) < 2:
            break
    return -1


def _length(body: bytes, start: int, end: int) -> int:
    """How many numbers stand there with commas between; 0 where there is anything else."""
    commas = 0
    for at in range(start, end, _WINDOW):
        give_way()
        piece = body[at : min(at + _WINDOW, end)]
        if piece.translate(None, _NUMBERS):
            return 0
        commas += piece.count(b",")
    return commas + 1


def _as_utf8(body: bytes) -> bytes:
    """``body`` in UTF-8 without a mark at its start, from any encoding that Python's ``json`` reads."""
    encoding = json.detect_encoding(body)
    if encoding == "utf-8":
        return body
    decoder = codecs.getincrementaldecoder(encoding)("surrogatepass")
    written = io.BytesIO()  # joining pieces would take their bytes twice
    try:
        for at in range(0, len(body), _WINDOW):
            give_way()
            text = decoder.decode(body[at : at + _WINDOW], at + _WINDOW >= len(body))
            written.write(text.encode("utf-8", "surrogatepass"))
    except UnicodeError as error:
        raise UnreadableBody(f"the body is not JSON: {type(error).__name__}") from None
    return written.getvalue()


def _too_complex(most: int) -> TooComplex:
    return TooComplex(f"the body has more than max_json_values={most} JSON values")
