"""Packed bodies are unpacked within a bound, in linear time, or called unreadable."""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Callable
from typing import Any

import brotli  # type: ignore[import-untyped]
import pytest
import zstandard

from gpu_admission.admission.buffered import BufferedBytes, Copies
from gpu_admission.errors import QueueFull, TooLarge, UnreadableBody
from gpu_admission.http.unpack import unpack

TEXT = b'{"prompt": "hello", "max_tokens": 12}' * 3000
LIMIT = 2**20


def raw_deflate(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(data) + stream.flush()


def with_checksum(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


PACKERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "x-gzip": ("x-gzip", gzip.compress),
    "zlib": ("deflate", zlib.compress),
    "raw deflate": ("deflate", raw_deflate),
    "br": ("br", brotli.compress),
    "zstd": ("zstd", zstandard.compress),
    "zstd with a checksum": ("zstd", with_checksum),
}
each_packer = pytest.mark.parametrize(("encoding", "pack"), PACKERS.values(), ids=PACKERS)


def unpacked(body: bytes, *encodings: str, limit: int = LIMIT, buffered: int = 2**30) -> bytes:
    buffer = BufferedBytes(buffered)
    try:
        with Copies(buffer) as copies:
            return unpack(body, list(encodings), limit, copies)
    finally:
        assert buffer.unpacking == 0


@each_packer
def test_each_encoding_comes_off(encoding: str, pack: Callable[[bytes], bytes]) -> None:
    assert unpacked(pack(TEXT), encoding) == TEXT


@each_packer
def test_what_is_cut_short_is_unreadable(encoding: str, pack: Callable[[bytes], bytes]) -> None:
    packed = pack(TEXT)
    for end in (1, len(packed) // 2, len(packed) - 1):
        with pytest.raises(UnreadableBody, match="not valid"):
            unpacked(packed[:end], encoding)


@each_packer
def test_a_bomb_is_refused_at_the_bound(encoding: str, pack: Callable[[bytes], bytes]) -> None:
    with pytest.raises(TooLarge, match="max_body_bytes"):
        unpacked(pack(bytes(64 * LIMIT)), encoding)


@each_packer
def test_what_is_not_packed_at_all_is_unreadable(encoding: str, pack: Callable[[bytes], bytes]) -> None:
    with pytest.raises(UnreadableBody):
        unpacked(b"\x07 this is plain text, long enough to be a header", encoding)


def test_the_last_encoding_comes_off_first() -> None:
    assert unpacked(brotli.compress(gzip.compress(TEXT)), "gzip", "br") == TEXT


def test_an_empty_body_stays_empty() -> None:
    assert unpacked(b"", "gzip") == b""


def test_more_than_three_encodings_are_not_taken_off() -> None:
    with pytest.raises(UnreadableBody, match="4 times"):
        unpacked(b"x", "gzip", "gzip", "gzip", "gzip")


def test_an_unknown_encoding_is_unreadable_and_named() -> None:
    with pytest.raises(UnreadableBody, match="'pack200'"):
        unpacked(b"x", "pack200")


def test_all_members_of_a_gzip_file_count() -> None:
    assert unpacked(gzip.compress(TEXT) + gzip.compress(b"end"), "gzip") == TEXT + b"end"


def test_all_frames_of_zstd_count() -> None:
    assert unpacked(zstandard.compress(TEXT) + zstandard.compress(b"end"), "zstd") == TEXT + b"end"


def test_bytes_after_the_end_of_deflate_are_unreadable() -> None:
    with pytest.raises(UnreadableBody):
        unpacked(zlib.compress(TEXT) + b"more", "deflate")


def test_many_empty_members_take_linear_time() -> None:
    """Counted in bytes given to the decoder, not in seconds."""
    given = 0

    class Counting:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._stream = decompressobj(*args, **kwargs)

        def decompress(self, data: bytes, most: int) -> bytes:
            nonlocal given
            given += len(data)
            return self._stream.decompress(data, most)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._stream, name)

    decompressobj = zlib.decompressobj
    body = gzip.compress(b"") * 20_000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpu_admission.http.unpack.zlib.decompressobj", Counting)
        assert unpacked(body, "gzip") == b""
    assert given < 100 * len(body)


def test_what_unpacking_bodies_hold_together_is_bounded() -> None:
    with pytest.raises(QueueFull, match="max_buffered_bytes"):
        unpacked(gzip.compress(TEXT), "gzip", buffered=1000)


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "brotli", None)
    with pytest.raises(UnreadableBody, match="package brotli"):
        unpacked(brotli.compress(TEXT), "br")


def test_zstd_cut_short_between_two_blocks_is_unreadable() -> None:
    packed = zstandard.compress(TEXT)
    header = zstandard.frame_header_size(packed)
    with pytest.raises(UnreadableBody):
        unpacked(packed[: header + 2], "zstd")
