"""Tokens of a text. Owns the ways to count them: by characters, by bytes, by a tokenizer.

What a character counts for is in ``tokenrates``; what a body's fields mean must not be put here.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from gpu_admission.bodies.json import LARGE, JSONObject, LongList
from gpu_admission.workloads.tokenrates import hundredths

TokensOption: TypeAlias = Any
"""``"usual"``, ``"bound"``, or an object of tokenizers, tiktoken or transformers."""

_SEAM = 8
"""Tokens added where a text was cut into pieces."""
_ROW_TOKENS: Final = 2
"""Special tokens of one row, such as begin and end."""
_TOKEN_TYPES = (int, str)


class Counter(Protocol):
    """Counts tokens. ``body`` knows the sizes of texts that were too long to read."""

    @property
    def offload_bytes(self) -> int:
        """Bodies above this many bytes should be read off the event loop."""
        ...

    def text(self, body: JSONObject, text: str) -> int:
        """Tokens of a text."""
        ...

    def texts(self, body: JSONObject, texts: list[str]) -> int:
        """Tokens of several texts, each counted by itself."""
        ...

    def json(self, body: JSONObject, value: Any) -> int:
        """Tokens of a value that a template writes as JSON."""
        ...


class Usual:
    """Tokens by the kinds of characters: enough for natural text, code and data in any language.

    A string that was left out is counted in pieces. JSON counts with the white space that a template
    may add.
    """

    __slots__ = ()
    offload_bytes = 32 * 1024

    def text(self, body: JSONObject, text: str) -> int:
        counted = hundredths(text) if body.is_whole else sum(map(hundredths, body.pieces(text)))
        return (counted + 99) // 100

    def texts(self, body: JSONObject, texts: list[str]) -> int:
        if body.total < LARGE and body.is_whole:
            return (hundredths("".join(texts)) + 99) // 100 + len(texts)
        return sum(self.text(body, text) for text in texts) + len(texts)

    def json(self, body: JSONObject, value: Any) -> int:
        if body.total >= LARGE or not body.is_whole:
            return body.json_size(value) + 1
        try:
            written = msgspec.json.encode(value).decode()
        except (TypeError, ValueError, OverflowError, RecursionError):
            return 2 * body.total
        return (hundredths(written) + 50 * written.count(",") + 50 * written.count("{") + 99) // 100


class Bound:
    """One token per byte: never exceeded by byte-level BPE, nor by SentencePiece or WordPiece.

    Text is measured as it stands and in Unicode's form NFC, which several tokenizers bring it
    into first and which can be longer. For models that use NFKC, such as T5, pass a tokenizer.
    JSON counts twice, for the white space that a template may add.
    """

    __slots__ = ()
    offload_bytes = 32 * 1024

    def text(self, body: JSONObject, text: str) -> int:
        size = body.size(text)
        if text.isascii() and size == len(text):
            return size + 1
        return max(size, sum(map(_normalised_size, body.pieces(text)))) + 1

    def texts(self, body: JSONObject, texts: list[str]) -> int:
        return sum(self.text(body, text) for text in texts)

    def json(self, body: JSONObject, value: Any) -> int:
        return body.spaced_size(value) + 1


class Tokenizer:
    """Exact tokens of a text, from the user's own tokenizer.

    Texts are passed in pieces of at most 64 Ki characters, since the time of some tokenizers grows
    with the square of the length. What a tokenizer can't encode is counted by bytes.
    """

    __slots__ = ("_count",)
    offload_bytes = 16 * 1024

    def __init__(self, count: Callable[[str], int]) -> None:
        self._count = count

    def text(self, body: JSONObject, text: str) -> int:
        try:
            return self._exact(body.pieces(text))
        except Exception:
            return body.size(text) + 1

    def texts(self, body: JSONObject, texts: list[str]) -> int:
        return sum(self.text(body, text) for text in texts)

    def json(self, body: JSONObject, value: Any) -> int:
        try:
            text = body.json_text(value)
            return body.spaced_size(value) if text is None else self._exact(body.pieces(text))
        except Exception:
            return body.spaced_size(value)

    def _exact(self, pieces: Iterable[str]) -> int:
        counts = list(map(self._count, pieces))
        return sum(counts) + _SEAM * len(counts) if len(counts) > 1 else sum(counts)


def counter(tokens: TokensOption) -> Counter:
    """The counter that the option ``tokens`` asks for. Raises ``TypeError`` or ``ValueError``.

    ``usual`` counts by the kinds of characters, ``bound`` one for each byte. ``safe`` is the old
    name of ``usual``.
    """
    if not isinstance(tokens, str):
        return Tokenizer(_counting(tokens))
    if tokens in ("usual", "safe"):
        return Usual()
    if tokens == "bound":
        return Bound()
    if tokens == "expected":
        raise ValueError("tokens='expected' fell short for many languages: say 'usual', or pass a tokenizer")
    raise ValueError(f"tokens must be 'usual', 'bound' or a tokenizer, got {tokens!r}")


def rows(body: JSONObject, counter: Counter, value: Any) -> list[int]:
    """Tokens of each prompt in ``value``: a text, token ids, or a list of either.

    A list of ids and texts side by side is one prompt (llama.cpp's).
    """
    if value is None:
        return []
    if type(value) is str:
        return [counter.text(body, value) + _ROW_TOKENS]
    if type(value) is LongList:
        return [len(value)]
    if type(value) is not list:
        return [counter.json(body, value) + _ROW_TOKENS]
    ids = sum(1 for item in value if type(item) is int)
    if ids and ids == len(value):
        return [ids]
    found = [_row(body, counter, item) for item in value if type(item) is not int]
    return [ids + sum(found)] if ids else found


def _row(body: JSONObject, counter: Counter, item: Any) -> int:
    if type(item) is str:
        return counter.text(body, item) + _ROW_TOKENS
    if type(item) is LongList:
        return len(item)
    if type(item) is list and all(type(token) in _TOKEN_TYPES for token in item):
        ids = sum(1 for token in item if type(token) is int)
        return max(1, ids + sum(_row(body, counter, token) for token in item if type(token) is str))
    return counter.json(body, item) + _ROW_TOKENS


def _counting(tokenizer: Any) -> Callable[[str], int]:
    if callable(ordinary := getattr(tokenizer, "encode_ordinary", None)):
        return lambda text: len(ordinary(text))
    if not callable(encode := getattr(tokenizer, "encode", None)):
        raise TypeError(f"tokens must be a name or an object with encode(), not {type(tokenizer).__name__}")
    if hasattr(tokenizer, "encode_batch") or hasattr(tokenizer, "add_special_tokens"):
        return lambda text: len(_ids(encode(text, add_special_tokens=False)))
    return lambda text: len(_ids(encode(text)))


def _ids(encoded: Any) -> Any:
    return getattr(encoded, "ids", encoded)


def _normalised_size(text: str) -> int:
    return len(unicodedata.normalize("NFC", text).encode("utf-8", "surrogatepass"))
