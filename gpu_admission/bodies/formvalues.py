"""Long values of forms and uploads that were left out, and what is known of them.

The same as ``longvalues`` is for JSON: a value of megabytes is decoded in pieces, so that no call
holds up other threads. What a field means must not be put here.
"""

from __future__ import annotations

import binascii
import re
import secrets
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from gpu_admission.bodies.longvalues import PIECE, windows
from gpu_admission.bodies.multipart import Part
from gpu_admission.bodies.pace import give_way

_CODED: Final = 3
_CHARACTER: Final = 4
_NONCE_DIGITS = 40


class LeftOut(Protocol):
    """A text that was too long to read."""

    @property
    def length(self) -> int:
        """Bytes of it as it was sent."""
        ...

    @property
    def size(self) -> int:
        """Bytes of it in UTF-8, or a little more."""
        ...

    def head(self, length: int) -> str:
        """The first ``length`` characters, or somewhat fewer."""
        ...

    def pieces(self) -> Iterator[str]:
        """All of it, in pieces of up to 64 Ki characters."""
        ...


class FormString:
    """A value of a form in a URL's encoding, from ``start`` to ``end`` of its body."""

    __slots__ = ("_body", "_end", "_start")

    def __init__(self, body: bytes, start: int, end: int) -> None:
        self._body = body
        self._start = start
        self._end = end

    @property
    def length(self) -> int:
        return self._end - self._start

    @property
    def size(self) -> int:
        return sum(len(piece.encode()) for piece in self.pieces())

    def head(self, length: int) -> str:
        stop = min(self._start + _CODED * length, self._end)
        if stop < self._end:
            stop = _unit_end(self._body, self._start, stop)
        return decoded(self._body[self._start : stop])[:length]

    def pieces(self) -> Iterator[str]:
        return map(decoded, windows(self._body, self._start, self._end, _unit_end))


class PartString:
    """The content of a part of an upload, of which only the first bytes are known: the rest are zeros."""

    __slots__ = ("_part",)

    def __init__(self, part: Part) -> None:
        self._part = part

    @property
    def length(self) -> int:
        return self._part.size

    @property
    def size(self) -> int:
        head = self._part.head
        return self._part.size - len(head) + len(_text(head).encode())

    def head(self, length: int) -> str:
        return _text(self._part.head[:length])

    def pieces(self) -> Iterator[str]:
        yield _text(self._part.head)
        for at in range(len(self._part.head), self._part.size, PIECE):
            give_way()
            yield "0" * min(PIECE, self._part.size - at)


class Lines:
    """Several texts as one, a line each."""

    __slots__ = ("_texts",)

    def __init__(self, texts: Sequence[str | LeftOut]) -> None:
        self._texts = texts

    @property
    def length(self) -> int:
        return sum(len(text) if isinstance(text, str) else text.length for text in self._texts)

    @property
    def size(self) -> int:
        sizes = (len(text.encode()) if isinstance(text, str) else text.size for text in self._texts)
        return sum(sizes) + len(self._texts) - 1

    def head(self, length: int) -> str:
        first = self._texts[0]
        return first[:length] if isinstance(first, str) else first.head(length)

    def pieces(self) -> Iterator[str]:
        for number, text in enumerate(self._texts):
            if number:
                yield "\n"
            yield from (text,) if isinstance(text, str) else text.pieces()


class FormStrings:
    """The texts that were left out of a form, by their keys. No body can contain such a key by itself."""

    __slots__ = ("_found", "_prefix")

    def __init__(self) -> None:
        self._prefix = str(secrets.randbelow(10**_NONCE_DIGITS)).zfill(_NONCE_DIGITS) + ":"
        self._found: dict[str, LeftOut] = {}

    def add(self, text: LeftOut) -> str:
        """The key for ``text``."""
        key = f"{self._prefix}{len(self._found)}"
        self._found[key] = text
        return key

    def __len__(self) -> int:
        return len(self._found)

    def get(self, text: str) -> LeftOut | None:
        """What ``text`` is the key of, if it is one."""
        return self._found.get(text)

    def find(self, text: str) -> list[tuple[str, LeftOut]]:
        """The keys that stand in ``text``, and what was left out for them."""
        keys = re.findall(rf"{self._prefix}\d+", text) if self._found else ()
        return [(key, self._found[key]) for key in keys]


def decoded(raw: bytes) -> str:
    """``raw``, decoded from a URL's encoding.

    Quoted-printable is the same with another mark, and is decoded at memory speed: for a body of
    nothing but escapes, Python's own function makes a list of a hundred times its bytes. An invalid
    escape may become longer than it was, but never shorter.
    """
    if b"%" in raw:
        for one, other in ((b"=", b"=3D"), (b"\r", b" "), (b"\n", b" "), (b"%%", b"%25%25"), (b"%", b"=")):
            raw = raw.replace(one, other)
        raw = binascii.a2b_qp(raw.replace(b"+", b" "))
    else:
        raw = raw.replace(b"+", b" ")
    return _text(raw)


def _unit_end(body: bytes, start: int, stop: int) -> int:
    """The last place up to ``stop`` at which neither an escape nor a raw UTF-8 character is split."""
    last = body.rfind(b"%", max(start, stop - _CODED + 1), stop)
    if last > start:
        return last
    for at in range(stop, max(start, stop - _CHARACTER), -1):
        if body[at] & 0xC0 != 0x80:
            return at
    return stop


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
