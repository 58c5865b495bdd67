"""The content of chat messages: text, images, sound, video, files. Owns the sum over its parts.

It charges every key that a part has, whatever its ``type`` says: servers differ in which key
they look at. An unknown key is charged as text. Nothing remote is fetched: what is only
referred to (an item, a document that the server keeps) goes into ``Tally.kept``.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from gpu_admission.bodies.json import JSONObject
from gpu_admission.errors import UnreadableBody
from gpu_admission.request import Part
from gpu_admission.workloads.audio import AUDIO_HEAD, seconds_of_text
from gpu_admission.workloads.images import UNKNOWN, Size, size_of_bytes, size_of_text
from gpu_admission.workloads.imagetokens import ImageTokensOption, Rule, rule_of
from gpu_admission.workloads.tokens import Counter, TokensOption, counter, rows

MESSAGE_TOKENS: Final = 8
"""What a chat template adds to each message."""
TEMPLATE_TOKENS: Final = 40
"""What it adds once: begin mark, generation prompt, and a system prompt of its own."""
MOST_IMAGES: Final = 10_000
"""A body with more images is refused."""
_IMAGE_MARKS = 2
_AUDIO_TOKENS_PER_SECOND = 25
"""The rate of Qwen2-Audio, the highest of the published audio models."""
_REMOTE_AUDIO_SECONDS = 1800.0
"""Assumed length, in seconds, of a recording that is not in the body."""
VIDEO_TOKENS: Final = 57_600
"""The published cap of Qwen2-VL's video reader: 90 % of a context of 128,000, in pairs of frames."""

_NOT_CHARGED = frozenset({"role", "type", "detail"})
_IMAGES = frozenset({"image_url", "images", "image", "input_image", "image_base64", "image_embeds"})
_SOUND = frozenset({"input_audio", "audio_url", "audio"})
_VIDEO = frozenset({"video_url", "video", "input_video"})
_NESTED = frozenset({"content", "output"})
_NAMED = frozenset({"file_id", "file_url", "file_uri"})
_ONLY_NAMED = frozenset({"id", "type", "status"})
_TEXT_SOURCES = frozenset({"text", "content"})
_DEEPEST = 8
LONGEST_WORD: Final = 32
"""A string up to this length is covered by the tokens that are charged for every message."""
_URL_KEYS = ("url", "data", "image_url", "file_data")


class Tally:
    """Tokens, images and seconds of audio of one prompt, added up part by part."""

    __slots__ = (
        *("_counter", "_image_tokens", "_video_tokens"),
        *("audio_seconds", "body", "images", "kept", "media_tokens", "tokens"),
    )

    def __init__(
        self, body: JSONObject, counter: Counter, image_tokens: Rule, *, video_tokens: int = VIDEO_TOKENS
    ) -> None:
        self.body = body
        self._counter = counter
        self._image_tokens = image_tokens
        self._video_tokens = video_tokens
        self.tokens = 0
        self.media_tokens = 0
        """The part of ``tokens`` for images, sound and video, which truncating text does not cut."""
        self.images: list[Size] = []
        self.audio_seconds = 0.0
        self.kept: list[str] = []
        """Names of fields for what only the server has: history, documents."""

    def rows(self, value: Any) -> list[int]:
        """Tokens of each prompt in ``value``; none of them is added to ``tokens``. See ``tokens.rows``."""
        return rows(self.body, self._counter, value)

    def row(self, content: Any) -> int:
        """Tokens of ``content`` as a prompt of its own, which are not added to ``tokens``."""
        before = self.tokens
        self.content(content)
        added, self.tokens = self.tokens - before, before
        return added

    def conversation(self, messages: Any) -> int:
        """The same for a list of messages."""
        before = self.tokens
        self.messages(messages)
        added, self.tokens = self.tokens - before, before
        return added

    def messages(self, messages: Any) -> None:
        """A list of messages. Anything else is charged as it would be written."""
        if type(messages) is not list:
            self.text(messages)
            return
        texts, others = plain_texts(messages)
        for message in others:
            self.content(message)
        self.tokens += MESSAGE_TOKENS * len(messages) + self._counter.texts(self.body, texts)

    def content(self, content: Any, depth: int = 0) -> None:
        """Text, one part (an object), or a list of them. What is nested deeper is charged as JSON."""
        if type(content) is dict and depth < _DEEPEST:
            self._part(content, depth)
        elif type(content) is list and depth < _DEEPEST:
            for part in content:
                self.content(part, depth + 1)
        else:
            self.text(content)

    def text(self, value: Any) -> None:
        """A text, or any other value as JSON; ``None`` is nothing."""
        if type(value) is str:
            self.tokens += self._counter.text(self.body, value)
        elif value is not None:
            self.tokens += self._counter.json(self.body, value)

    def image(self, value: Any) -> None:
        """A data URL, base64 or address, bare or in an object; an uploaded file; or a list of them."""
        for image in value if type(value) is list else (value,):
            if type(image) is Part:
                self._sized(size_of_bytes(image.head))
            elif (text := _address(image)) is None:
                self._sized(UNKNOWN)
            else:
                self._sized(size_of_text(partial(self.body.head, text)))

    def _sized(self, size: Size) -> None:
        if len(self.images) >= MOST_IMAGES:
            raise UnreadableBody(f"there are more than {MOST_IMAGES} images")
        self.images.append(size)
        self._media(self._image_tokens(*size) + _IMAGE_MARKS)

    def _media(self, tokens: int) -> None:
        self.tokens += tokens
        self.media_tokens += tokens

    def _part(self, part: dict[str, Any], depth: int) -> None:
        if "id" in part and part.keys() <= _ONLY_NAMED:
            self.kept.append("item_reference")
        for key, value in part.items():
            if value is None or (key in _NOT_CHARGED and _is_word(value)):
                continue
            if key in _NESTED:
                self.content(value, depth + 1)
            elif key in _IMAGES:
                self.image(value)
            elif key in _SOUND:
                self.sound(value)
            elif key in _VIDEO:
                self._media(self._video_tokens * (len(value) if type(value) is list else 1))
            elif key in _NAMED:
                self._named(key, part)
            elif key == "source" and type(value) is dict:
                self._source(value, part, depth)
            elif key == "file" and type(value) is dict and depth < _DEEPEST:
                self._part(value, depth + 1)
            else:
                self.text(value)

    def _named(self, key: str, part: dict[str, Any]) -> None:
        """What the server keeps, or will fetch: a picture of unknown size, or a document."""
        if _says(part.get("type"), "image"):
            self._sized(UNKNOWN)
        else:
            self.kept.append(key)

    def _source(self, source: dict[str, Any], part: dict[str, Any], depth: int) -> None:
        """Anthropic's blocks: where a picture or a document comes from, or its text."""
        kind = source.get("type")
        if not _is_word(kind) or kind in _TEXT_SOURCES:
            self.content([value for key, value in source.items() if key != "type"], depth + 1)
        elif part.get("type") == "image" or _says(source.get("media_type"), "image/"):
            self.image(source)
        elif kind == "base64":
            self.text(source.get("data"))
        else:
            self.kept.append("source")

    def sound(self, value: Any) -> None:
        """A data URL, base64 or address of a recording, bare or in an object, or a list of them."""
        for recording in value if type(value) is list else (value,):
            self._recording(recording)

    def _recording(self, value: Any) -> None:
        text = _address(value)
        length = 0 if text is None else self.body.size(text)
        seconds = _REMOTE_AUDIO_SECONDS
        if text is not None and text[:4].lower() != "http":
            seconds = seconds_of_text(self.body.head(text, AUDIO_HEAD), length)
        self.audio_seconds += seconds
        self._media(int(seconds * _AUDIO_TOKENS_PER_SECOND) + _IMAGE_MARKS)


class Tallies:
    """Makes an empty tally for each body, by a dialect's options ``tokens`` and ``image_tokens``.

    The latter may be left out if the tokens of pictures are not asked for.
    """

    __slots__ = ("counter", "image_tokens")

    def __init__(self, tokens: TokensOption, image_tokens: ImageTokensOption = 1) -> None:
        self.counter = counter(tokens)
        self.image_tokens = rule_of(image_tokens)

    @property
    def offload_bytes(self) -> int:
        """As ``Counter`` says."""
        return self.counter.offload_bytes

    def __call__(self, body: JSONObject) -> Tally:
        return Tally(body, self.counter, self.image_tokens)


def plain_texts(messages: list[Any]) -> tuple[list[str], list[Any]]:
    """The texts of those ``messages`` that have only a role and a text, as most do; and the others."""
    texts: list[str] = []
    others: list[Any] = []
    for message in messages:
        # ``_is_word``, without a call for each message
        if (
            type(message) is dict
            and len(message) == 2
            and type(role := message.get("role")) is str
            and len(role) <= LONGEST_WORD
            and type(text := message.get("content")) is str
        ):
            texts.append(text)
        else:
            others.append(message)
    return texts, others


def _is_word(value: Any) -> bool:
    """Whether it is so short that the tokens charged for every message cover it."""
    return type(value) is str and len(value) <= LONGEST_WORD


def _says(value: Any, word: str) -> bool:
    return _is_word(value) and word in value


def _address(value: Any) -> str | None:
    """The text that says where an image or sound is, in any of the forms in use."""
    if type(value) is dict:
        value = next((value[key] for key in _URL_KEYS if type(value.get(key)) is str), None)
    return value if type(value) is str else None
