"""The size of an image comes from its first bytes."""

from __future__ import annotations

import base64
import builtins
import io
from collections.abc import Callable
from typing import Any

import pytest
from PIL import Image

from gpu_admission.workloads.images import UNKNOWN, size_of_bytes, size_of_text
from tests.workloads import pictures

FORMATS: list[Callable[[int, int], bytes]] = [
    pictures.png, pictures.jpeg, pictures.gif, pictures.webp, pictures.avif
]  # fmt: skip


def head_of(text: str) -> Callable[[int], str]:
    return lambda length: text[:length]


@pytest.mark.parametrize("make", FORMATS)
def test_the_header_of_each_format_tells_its_size(make: Callable[[int, int], bytes]) -> None:
    assert size_of_bytes(make(1920, 1080)) == (1920, 1080)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "AVIF"])
def test_the_first_bytes_of_real_files_are_enough(kind: str) -> None:
    file = io.BytesIO()
    Image.new("RGB", (320, 200), "red").save(file, kind)
    assert size_of_bytes(file.getvalue()[:4096]) == (320, 200)


@pytest.mark.parametrize("make", FORMATS)
def test_a_data_url_and_bare_base64_tell_the_size(make: Callable[[int, int], bytes]) -> None:
    encoded = base64.b64encode(make(640, 480)).decode()
    assert size_of_text(head_of(encoded)) == (640, 480)
    assert size_of_text(head_of(f"data:image/any;base64,{encoded}")) == (640, 480)


def test_base64_may_be_broken_into_lines() -> None:
    assert size_of_text(head_of(base64.encodebytes(pictures.png(640, 480)).decode())) == (640, 480)


def test_a_size_behind_long_metadata_is_found() -> None:
    encoded = base64.b64encode(pictures.jpeg(640, 480, metadata=200_000)).decode()
    assert size_of_text(head_of(encoded)) == (640, 480)


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"\x89PNG\r\n\x1a\n",
        b"\xff\xd8\xff",
        b"GIF89a",
        b"RIFF\0\0\0\0WEBP",
        b"\0\0\0\x18ftypavif",
        b"<svg/>",
        b"BM",
    ],
)
def test_what_has_no_size_is_unknown(head: bytes) -> None:
    assert size_of_bytes(head) == UNKNOWN


def test_a_size_of_zero_is_unknown() -> None:
    assert size_of_bytes(pictures.png(0, 100)) == UNKNOWN


@pytest.mark.parametrize(
    "text", ["", "https://example.org/a.png", "data:image/png,plain", "data:;base64,", "data:;base64,é", "A"]
)
def test_text_that_holds_no_image_has_no_size(text: str) -> None:
    assert size_of_text(head_of(text)) == UNKNOWN


def test_a_size_behind_endless_metadata_is_unknown() -> None:
    encoded = base64.b64encode(pictures.jpeg(640, 480, metadata=1_200_000)).decode()
    assert size_of_text(head_of(encoded)) == UNKNOWN


def test_a_decompression_bomb_costs_no_more_than_its_header() -> None:
    assert size_of_bytes(pictures.png(2**31 - 1, 2**31 - 1)) == (2**31 - 1, 2**31 - 1)


def test_without_the_library_sizes_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "imagesize":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    assert size_of_bytes(pictures.png(640, 480)) == UNKNOWN
