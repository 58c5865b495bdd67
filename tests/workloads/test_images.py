"""The size of an image comes from its first bytes."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from typing import Any

import pytest
from PIL import Image

from gpu_admission.workloads.images import NO_IMAGE, UNKNOWN, size_of_bytes, size_of_text
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
        b"\0",
        b"\x89PNG\r\n\x1a\n",
        b"\xff\xd8\xff",
        b"GIF89a\0",
        b"RIFF\0\0\0\0WEBP",
        b"\0\0\0\x18ftypavif",
        b"<svg/>",
        b"BM\0",
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


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"hello",
        b'{"a": 1}',
        "größer".encode(),
        b"a\nb\tc",
        "é".encode() * 4000,
        b"x" + "é".encode() * 4000,
    ],
)
def test_text_is_no_image_and_takes_nothing(head: bytes) -> None:
    assert size_of_bytes(head) == NO_IMAGE


@pytest.mark.parametrize(
    "head",
    [
        b"P6 9 9 255",
        b"#define w_width 9",
        b"%!PS",
        b"SIMPLE = T",
        b"Image size (x*y): 9*9",
        b"Name: a\nImage type: L",
    ],
)
def test_images_that_are_written_as_text_are_still_images(head: bytes) -> None:
    assert size_of_bytes(head) == UNKNOWN


def test_a_header_that_comes_twice_is_not_believed() -> None:
    small, large = pictures.png(8, 8), pictures.png(9000, 9000)
    assert size_of_bytes(small + large[8:]) == UNKNOWN
    frame = pictures.jpeg(9000, 9000)[2:]
    assert size_of_bytes(pictures.jpeg(8, 8)[:21] + frame) == UNKNOWN


def test_a_frame_that_is_larger_than_its_screen_counts() -> None:
    assert size_of_bytes(pictures.gif(8, 8, (9000, 7000))) == (9000, 7000)
    assert size_of_bytes(pictures.gif(9000, 8, (8, 7000))) == (9000, 7000)


def test_a_header_that_may_be_followed_by_another_is_not_believed() -> None:
    comment = b"\0\0\x10\0tEXt" + bytes(4096 + 4)
    cut = (pictures.png(8, 8) + comment * 20)[: 64 * 1024]
    assert size_of_bytes(cut) == UNKNOWN


def test_a_file_of_endless_pieces_is_followed_no_further() -> None:
    assert size_of_bytes(b"\xff\xd8\xff" + b"\xff\xe0\0\2" * 300_000) == UNKNOWN
    assert size_of_bytes(pictures.png(8, 8) + b"\0\0\0\0tEXt\0\0\0\0" * 100_000) == UNKNOWN
    assert size_of_bytes(pictures.gif(8, 8)[:19] + b"!\xfe\0" * 100_000) == UNKNOWN


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "AVIF"])
@pytest.mark.parametrize("options", [{}, {"quality": 30}, {"lossless": True}, {"progressive": True}])
def test_sizes_are_those_that_a_decoder_finds(kind: str, options: dict[str, Any]) -> None:
    for mode, size in (("RGB", (321, 57)), ("L", (1, 1000)), ("RGBA", (640, 480))):
        file = io.BytesIO()
        Image.new(mode, size, 1).convert("RGB" if kind == "JPEG" else mode).save(file, kind, **options)
        assert size_of_bytes(file.getvalue()[:65536]) == Image.open(file).size
