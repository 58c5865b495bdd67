"""Content encodings: BL-24."""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from collections.abc import Callable

import brotli  # type: ignore[import-untyped]
import pytest
import zstandard

from tests.cases.harness import StreamedCost, scenario
from tests.cases.sizing import MIB, asked_tokens, traced

pytestmark = pytest.mark.anyio


# BL-24: content encodings

ASKS = json.dumps({"prompt": "hi", "max_tokens": 100_000}).encode()


def _zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


PACKED: dict[str, tuple[bytes, bytes]] = {
    "gzip": (b"gzip", gzip.compress(ASKS)),
    "upper case": (b"GZIP", gzip.compress(ASKS)),
    "spaces": (b" gzip ", gzip.compress(ASKS)),
    "x-gzip": (b"x-gzip", gzip.compress(ASKS)),
    "identity": (b"identity", ASKS),
    "two members": (b"gzip", gzip.compress(ASKS[:9]) + gzip.compress(ASKS[9:])),
    "deflate": (b"deflate", zlib.compress(ASKS)),
    "raw deflate": (b"deflate", zlib.compress(ASKS, wbits=-15)),
    "br": (b"br", brotli.compress(ASKS)),
    "zstd": (b"zstd", _zstd(ASKS)),
    "gzip, br": (b"gzip, br", brotli.compress(gzip.compress(ASKS))),
    "three": (b"br,gzip,zstd", _zstd(gzip.compress(brotli.compress(ASKS)))),
}


@pytest.mark.parametrize("name", PACKED)
async def test_bl_24_a_packed_body_is_charged_for_what_it_asks_and_passed_on_as_it_came(name: str) -> None:
    encoding, packed = PACKED[name]
    header = (b"content-encoding", encoding)
    async with scenario(estimator=asked_tokens, capacity=10**6) as scene:
        call = await scene.run(packed[:5], packed[5:], headers=[header])
        assert call.lease is not None
        assert call.lease.bytes > 100_000
        assert call.read == packed
        assert header in call.scope["headers"]


BROKEN = {
    "unknown": (b"snappy", ASKS),
    "not packed": (b"gzip", ASKS),
    "cut short": (b"gzip", gzip.compress(ASKS)[:-1]),
    "cut short deflate": (b"deflate", zlib.compress(ASKS)[:-1]),
    "cut short br": (b"br", brotli.compress(ASKS)[:-1]),
    "cut short zstd": (b"zstd", _zstd(ASKS)[:-1]),
    "bytes behind": (b"gzip", gzip.compress(ASKS) + b"more"),
    "bytes behind deflate": (b"deflate", zlib.compress(ASKS) + b"more"),
    "bytes behind br": (b"br", brotli.compress(ASKS) + b"more"),
    "bytes behind zstd": (b"zstd", _zstd(ASKS) + b"more"),
    "packed nothing": (b"gzip", gzip.compress(b"")),
    "one too many": (b"gzip, gzip", gzip.compress(ASKS)),
    "four times": (b"gzip,gzip,gzip,gzip", ASKS),
    "not text": (b"\xff\xfe", ASKS),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_bl_24_what_cannot_be_unpacked_is_refused_or_charged_the_fallback(name: str) -> None:
    encoding, packed = BROKEN[name]
    headers = [(b"content-encoding", encoding)]
    async with scenario(estimator=asked_tokens, capacity=10**6) as scene:
        call = await scene.run(packed, headers=headers)
        assert call.problem()["reason"] == "unreadable_body"
        assert call.status == 400
        assert "retry-after" not in call.headers
    async with scenario(estimator=asked_tokens, capacity=10**6, fallback=777) as scene:
        call = await scene.run(packed, headers=headers)
        assert call.lease is not None
        # What an app that ignores the header, or unpacks but once, would read counts too, where that is more.
        raw = 100_003 if packed == ASKS or name == "one too many" else 0
        assert call.lease.bytes == max(777, raw)
        assert call.read == packed


async def test_an_empty_body_asks_for_nothing_however_it_is_said_to_be_packed() -> None:
    async with scenario(estimator=asked_tokens, capacity=10**6) as scene:
        call = await scene.run(b"", headers=[(b"content-encoding", b"gzip")])
        assert (call.status, call.lease) == (200, None)
    async with scenario(estimator=asked_tokens, capacity=10**6, fallback=777) as scene:
        call = await scene.run(b"", headers=[(b"content-encoding", b"gzip")])
        assert call.lease is not None
        assert call.lease.bytes == 777


def gzip_bomb(mebibytes: int) -> bytes:
    """Zeros, a thousand to one. It has no valid end: nobody should get there."""
    packer = zlib.compressobj(9, wbits=31)
    head = packer.compress(b"") + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    return head + block * mebibytes


def zstd_bomb(mebibytes: int) -> bytes:
    """Zeros in blocks of 128 KiB that repeat one byte: four bytes each (RFC 8878, 3.1.1.2)."""
    header = struct.pack("<IBB", 0xFD2FB528, 0, (17 - 10) << 3)
    block = (128 * 1024 << 3 | 1 << 1).to_bytes(3, "little") + b"\0"
    last = (128 * 1024 << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"\0"
    return header + block * (8 * mebibytes - 1) + last


BOMBS: dict[str, tuple[bytes, Callable[[], bytes]]] = {
    "gzip in gzip, 10 GiB": (b"gzip, gzip", lambda: gzip.compress(gzip_bomb(10 * 1024))),
    "gzip": (b"gzip", lambda: gzip_bomb(256)),
    "small gzip": (b"gzip", lambda: gzip_bomb(3)),
    "br": (b"br", lambda: brotli.compress(bytes(64 * MIB), quality=1)),
    "zstd": (b"zstd", lambda: zstd_bomb(320)),
}


@pytest.mark.parametrize("name", BOMBS)
async def test_bl_24_a_bomb_is_refused_and_memory_stays_flat(name: str) -> None:
    encoding, make = BOMBS[name]
    bomb = make()
    assert len(bomb) < 300_000
    async with scenario(estimator=asked_tokens, max_body_bytes="2MiB") as scene:
        with traced() as memory:
            call = await scene.run(bomb, headers=[(b"content-encoding", encoding)])
        assert call.problem()["reason"] == "body_too_large"
        assert call.status == 413
        assert memory.peak < 6 * MIB
        assert scene.admission.buffer.unpacking == 0


async def test_bl_24_a_bomb_that_a_picker_reads_first_is_refused_too() -> None:
    async with scenario(
        estimator=StreamedCost(), max_body_bytes="2MiB", flow=lambda info: info.json["user"]
    ) as scene:
        call = await scene.run(gzip_bomb(3), headers=[(b"content-encoding", b"gzip")])
        assert call.status == 413
