"""Long encoded strings inside JSON text, found without reading it all. Owns the finding and their sizes.

Such a string is an inline image, sound or document in base64. Its content is never decoded
here beyond its first characters: only the closing quote is searched, at memory speed. Long
prose is left where it is: a JSON reader is as fast as anything that could be done here.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Final

LONG: Final = 64 * 1024
"""Strings of twice this many bytes are always found, shorter ones than it never."""
_ENCODED = re.compile(rb"data:[!-~]{0,200};base64,|[A-Za-z0-9+/=_-]{64}", re.IGNORECASE)
_BACKSLASH = ord("\\")


class LongString:
    """The content of a string between its quotes, as it stands in a JSON body."""

    __slots__ = ("_body", "_end", "_start")

    def __init__(self, body: bytes, start: int, end: int) -> None:
        self._body = body
        self._start = start
        self._end = end

    @property
    def length(self) -> int:
        """Bytes between the quotes, escapes as they are written."""
        return self._end - self._start

    def raw(self) -> bytes:
        """The bytes between the quotes."""
        return self._body[self._start : self._end]

    @property
    def size(self) -> int:
        r"""Bytes of the decoded string in UTF-8, or a little more: a pair of ``\uXXXX`` counts as 6."""
        body, start, end = self._body, self._start, self._end
        if body.find(b"\\", start, end) < 0:
            return end - start
        content = body[start:end].replace(b"\\\\", b"/")
        two_bytes = sum(content.count(b"\\u0%d" % digit) for digit in range(8))
        return len(content) - content.count(b"\\") - 2 * content.count(b"\\u") - two_bytes

    def head(self, length: int) -> str:
        """The first ``length`` bytes, decoded; a broken last character is left out."""
        piece = self._body[self._start : min(self._start + length, self._end)]
        if b"\\" not in piece:
            return piece.decode("utf-8", "ignore")
        for stop in range(len(piece), max(len(piece) - 12, -1), -1):
            try:
                text: str = json.loads(b'"' + piece[:stop] + b'"', strict=False)
            except ValueError:
                continue
            return text
        return ""


def cut_long_strings(body: bytes) -> tuple[bytes, dict[str, LongString]]:
    """``body`` with each long string replaced by a short key, and what the keys stand for.

    The keys can't be guessed, so no body can hold one of its own, and they are longer than
    what ``content`` takes for a word. A body in another encoding than UTF-8 is left whole, as
    are texts, and strings with an escaped quote inside.
    """
    found = _find(body)
    if not found:
        return body, {}
    nonce = os.urandom(24).hex()
    pieces: list[bytes] = []
    strings: dict[str, LongString] = {}
    done = 0
    for number, (start, end) in enumerate(found):
        key = f"{nonce}:{number}"
        pieces += (body[done:start], key.encode())
        strings[key] = LongString(body, start, end)
        done = end
    pieces.append(body[done:])
    return b"".join(pieces), strings


def restore(body: bytes, strings: Mapping[str, LongString]) -> bytes:
    """``body`` with the strings that ``cut_long_strings`` took out."""
    nonce = next(iter(strings), "").partition(":")[0]
    if not nonce:
        return body
    pieces = re.split(rf"({nonce}:\d+)".encode(), body)
    keys = {key.encode(): string for key, string in strings.items()}
    return b"".join(keys[piece].raw() if piece in keys else piece for piece in pieces)


def find_keys(text: str, strings: Mapping[str, LongString]) -> list[str]:
    """The keys of ``strings`` that stand in ``text``."""
    nonce = next(iter(strings), "").partition(":")[0]
    found = re.findall(rf"{nonce}:\d+", text) if nonce else []
    return [key for key in found if key in strings]


def _find(body: bytes) -> list[tuple[int, int]]:
    """Where long strings start and end. Looks at a quote every 64 KiB, and on from there."""
    found: list[tuple[int, int]] = []
    if b"\x00" in body[:4]:
        return found
    done, at, size = 0, LONG, len(body)
    while at < size:
        closing = body.find(b'"', at)
        if closing < 0:
            break
        if closing - at >= LONG:
            opening = body.rfind(b'"', done, at)
            if _is_encoded(body, opening, closing):
                found.append((opening + 1, closing))
            done = closing
        at = closing + LONG
    return found


def _is_encoded(body: bytes, opening: int, closing: int) -> bool:
    """Whether two neighbouring quotes hold a string of base64, or a data URL, between them.

    Behind a string's end only white space and ``, : ] }`` may stand, so that the first
    quote opens one. Escaped quotes do not count.
    """
    if opening < 1 or body[opening - 1] == _BACKSLASH or body[closing - 1] == _BACKSLASH:
        return False
    return _ENCODED.match(body, opening + 1) is not None
