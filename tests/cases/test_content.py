"""What a body can contain: lengths that lie, encodings, hostile JSON, memory: BL-20 to BL-31."""

from __future__ import annotations

import gzip
import json
import struct
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import brotli  # type: ignore[import-untyped]
import pytest
import zstandard

from gpu_admission import Estimate, RequestInfo
from gpu_admission.types import Message
from tests.cases.harness import StreamedCost, chunks, cost, scenario, settle, until

pytestmark = pytest.mark.anyio

MIB = 2**20


def asked_tokens(info: RequestInfo) -> int:
    """Charges what an OpenAI request asks for: a byte a token."""
    workload = info.workload
    return workload.prompt_tokens + workload.sequences * workload.new_tokens


class Traced:
    """Bytes that Python held inside a block, more than before: the most at once, and at its end."""

    peak = 0
    kept = 0


@contextmanager
def traced() -> Iterator[Traced]:
    traced = Traced()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        yield traced
        traced.kept, traced.peak = (size - before for size in tracemalloc.get_traced_memory())
    finally:
        tracemalloc.stop()


class Upload:
    """A client that sends ``count`` chunks of ``size`` bytes, made when they are received."""

    def __init__(self, size: int, count: int) -> None:
        self._size = size
        self._left = count
        self.received = 0

    async def receive(self) -> Message:
        self.received += 1
        self._left -= 1
        return {"type": "http.request", "body": b"x" * self._size, "more_body": self._left > 0}


# BL-20: more bytes than said


@pytest.mark.parametrize(
    "length", [None, b"10", b"1048576"], ids=["none declared", "a lie", "the limit declared"]
)
async def test_bl_20_real_bytes_are_counted_and_reading_stops_at_the_limit(length: bytes | None) -> None:
    headers = [] if length is None else [(b"content-length", length)]
    async with scenario(max_body_bytes="1MiB") as scene:
        upload = Upload(MIB // 2, 200)
        call = scene.call(headers=headers)
        call.receive = upload.receive  # type: ignore[method-assign]
        with traced() as memory:
            await call.run()
        assert call.status == 413
        assert call.problem()["reason"] == "body_too_large"
        assert "max_body_bytes" in call.problem()["detail"]
        assert "retry-after" not in call.headers
        assert call.headers["x-should-retry"] == "false"
        assert upload.received == 3
        assert memory.peak < 2.5 * MIB


@pytest.mark.parametrize("estimator", [cost, StreamedCost(), 10], ids=["reads", "streams", "fixed"])
async def test_bl_20_a_declared_length_over_the_limit_is_refused_before_reading(estimator: Any) -> None:
    async with scenario(max_body_bytes="1MiB", estimator=estimator) as scene:
        with traced() as memory:
            call = await scene.run(b"0123456789", headers=[(b"content-length", b"%d" % (5 * 2**30))])
        assert call.problem()["reason"] == "body_too_large"
        assert call.receives == 0
        assert memory.peak < MIB


async def test_bl_20_a_body_of_exactly_the_limit_is_let_in() -> None:
    async with scenario(max_body_bytes=10) as scene:
        call = await scene.run(b"01234", b"56789", headers=[(b"content-length", b"10")])
        assert call.status == 200


async def test_bl_20_an_upload_over_the_limit_is_counted_while_its_request_waits() -> None:
    async with scenario(max_body_bytes=10, estimator=StreamedCost()) as scene:
        holder = await scene.start(cost=100)
        call = await scene.start(cost=100, messages=chunks(b"0123", complete=False))
        assert scene.waiting == 1
        call.feed(*chunks(b"456789", complete=False), *chunks(b"x", complete=False))
        await call.done.wait()
        assert call.problem()["reason"] == "body_too_large"
        assert not call.reached_app
        assert scene.admission.snapshot().counts["body_too_large"] == 1
        assert "disconnected" not in scene.admission.snapshot().counts
        holder.finish()


async def test_bl_20_shadow_mode_lets_a_larger_body_through_whole() -> None:
    async with scenario(max_body_bytes=10, mode="shadow") as scene:
        call = await scene.run(b"0123456", b"789abcd", b"efg")
        assert call.status == 200
        assert call.read == b"0123456789abcdefg"


# BL-21: lengths that are no numbers


@pytest.mark.parametrize(
    "values",
    [
        [b"abc"],
        [b""],
        [b"-1"],
        [b"+5"],
        [b"1_000"],
        [b"5, 5"],
        [b"5", b"6"],
        [b"9" * 5000],
        ["٥".encode()],
        ["²".encode("latin-1")],
        [b"\xff\xfe"],
        [b" 5 "],
        [b"5.0"],
        [b"0x10"],
    ],
    ids=repr,
)
async def test_bl_21_a_malformed_content_length_is_ignored_and_real_bytes_are_counted(
    values: list[bytes],
) -> None:
    headers = [(b"content-length", value) for value in values]
    async with scenario(max_body_bytes=10) as scene:
        fits = await scene.run(b"12345", headers=headers)
        assert (fits.status, fits.error) == (200, None)
        larger = await scene.run(b"12345", b"67890", b"x", headers=headers)
        assert (larger.status, larger.error) == (413, None)


# BL-22: nothing is read of what is refused anyway


@pytest.mark.parametrize("case", ["declared", "draining", "queue full", "too large", "never waits"])
async def test_bl_22_a_refusal_that_needs_no_body_reads_none(case: str) -> None:
    settings: dict[str, Any] = {"max_body_bytes": 10}
    if case == "queue full":
        settings["max_waiting"] = 1
    if case in ("too large", "never waits"):
        settings |= {"estimator": StreamedCost(), "max_waiting": 0}
    async with scenario(**settings) as scene:
        holder = await scene.start(cost=100)
        waiter = await scene.start(cost=100)
        headers = [(b"content-length", b"11")] if case == "declared" else []
        if case == "draining":
            scene.admission.drain()
        call = await scene.run(b"0123456789", cost=101 if case == "too large" else 50, headers=headers)
        reasons = {
            "declared": "body_too_large",
            "draining": "draining",
            "too large": "too_large",
            "queue full": "queue_full",
            "never waits": "queue_full",
        }
        assert call.problem()["reason"] == reasons[case]
        assert call.receives == 0
        holder.finish()
        waiter.finish()


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
    "empty": (b"gzip", b""),
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
        assert call.lease.bytes == 777
        assert call.read == packed


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


# BL-25: odd but small bodies

ODD: dict[str, bytes] = {
    "deep list": b"[" * 20_000 + b"]" * 20_000,
    "deep object": b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
    "deep prompt": b'{"prompt":' + b"[" * 20_000 + b"]" * 20_000 + b"}",
    "deep messages": b'{"messages":' + b'[{"content":' * 3_000 + b"1" + b"}]" * 3_000 + b"}",
    "not utf-8": b'{"prompt":"\x80"}',
    "utf-16": '{"prompt": "hi"}'.encode("utf-16"),
    "utf-32": '{"prompt": "hi"}'.encode("utf-32"),
    "bom": b'\xef\xbb\xbf{"prompt": "hi"}',
    "lone surrogate": b'{"prompt": "\\ud800"}',
    "lone surrogate key": b'{"\\udfff": 1, "prompt": "x"}',
    "null": b"null",
    "list": b"[]",
    "text": b'"x"',
    "number": b"7",
    "long number": b'{"max_tokens": ' + b"9" * 5_000 + b"}",
    "infinity": b'{"max_tokens": Infinity}',
    "nan": b'{"max_tokens": NaN}',
    "1e400": b'{"max_tokens": 1e400}',
    "duplicate keys": b'{"max_tokens": 1, "max_tokens": 2, "prompt": "x"}',
    "empty": b"",
    "spaces": b"   ",
    "nul bytes": b"\0\0\0\0",
    "cut short": b'{"prompt": "hi',
    "no json": b"prompt=hi",
}


@pytest.mark.parametrize("content_type", [b"application/json", b"text/plain", b"image/png"])
@pytest.mark.parametrize("name", ODD)
async def test_bl_25_an_odd_body_is_refused_with_a_reason_or_charged_never_a_500(
    name: str, content_type: bytes
) -> None:
    headers = [(b"content-type", content_type)]
    path = "/v1/chat/completions"
    async with scenario(estimator=asked_tokens, capacity=10**6) as scene:
        call = await scene.run(ODD[name], headers=headers, path=path)
        assert call.error is None
        if call.reached_app:
            assert call.lease is not None
            assert 1 <= call.lease.bytes <= 10**6
        else:
            assert call.problem()["reason"] in ("unreadable_body", "too_large")
    async with scenario(estimator=asked_tokens, capacity=10**6, fallback=777) as scene:
        call = await scene.run(ODD[name], headers=headers, path=path)
        assert call.error is None
        assert call.reached_app or call.problem()["reason"] == "too_large"


@pytest.mark.parametrize("name", ODD)
async def test_bl_25_an_estimator_that_reads_json_itself_meets_the_same_answers(name: str) -> None:
    """``info.json`` raises what is answered with 400; any other failure costs the whole capacity."""
    async with scenario(estimator=lambda info: len(info.json["prompt"])) as scene:
        call = await scene.run(ODD[name])
        assert call.error is None
        if not call.reached_app:
            assert call.problem()["reason"] in ("unreadable_body", "too_large")


# BL-26: token limits of every kind

DEFAULT = 1024  # new tokens of a chat request that names no limit
LIMITS: list[tuple[Any, int | str]] = [
    (None, DEFAULT),
    (-1, DEFAULT),
    (0, DEFAULT),
    (-(10**18), DEFAULT),
    (1, 1),
    (1.5, 2),
    ("100", 100),
    (2_147_483_647, "too_large"),
    (10**18, "too_large"),
    (1e18, "too_large"),
    (10**400, "too_large"),
    (True, "unreadable_body"),
    (False, "unreadable_body"),
    ([5], "unreadable_body"),
    ({}, "unreadable_body"),
    ("many", "unreadable_body"),
]


def chat(**fields: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": "hi"}], **fields}).encode()


@pytest.mark.parametrize(("value", "expected"), LIMITS, ids=lambda value: str(value)[:12])
@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
async def test_bl_26_a_token_limit_of_any_kind_gives_a_finite_charge_or_a_refusal(
    field: str, value: Any, expected: int | str
) -> None:
    async with scenario(estimator=asked_tokens, capacity=10**6) as scene:
        call = await scene.run(chat(**{field: value}), path="/v1/chat/completions")
        if isinstance(expected, str):
            assert call.problem()["reason"] == expected
        else:
            assert call.lease is not None
            assert expected < call.lease.bytes < expected + 100


@pytest.mark.parametrize("field", ["max_tokens", "n", "best_of"])
@pytest.mark.parametrize("value", [True, [5], {}, "many", float("nan"), float("inf"), -1, 0, 1e300, 10**400])
async def test_bl_26_a_wrong_number_never_lowers_the_charge_nor_fails(field: str, value: Any) -> None:
    async with scenario(estimator=asked_tokens, capacity=10**6, fallback=5000) as scene:
        plain = await scene.run(chat(), path="/v1/chat/completions")
        call = await scene.run(chat(**{field: value}), path="/v1/chat/completions")
        assert call.error is None
        assert plain.lease is not None
        if call.lease is None:
            assert call.problem()["reason"] == "too_large"
        else:
            assert call.lease.bytes >= plain.lease.bytes


async def test_bl_26_no_limit_at_all_means_the_default() -> None:
    async with scenario(estimator=asked_tokens, capacity=10**6) as scene:
        call = await scene.run(chat(), path="/v1/chat/completions")
        assert call.lease is not None
        assert DEFAULT < call.lease.bytes < DEFAULT + 100


async def test_bl_26_a_list_of_prompts_is_charged_for_each() -> None:
    body = json.dumps({"prompt": ["x"] * 10_000, "max_tokens": 5}).encode()
    async with scenario(estimator=asked_tokens, capacity=10**6) as scene:
        call = await scene.run(body, path="/v1/completions")
        assert call.lease is not None
        assert call.lease.bytes >= 50_000


@pytest.mark.parametrize(
    ("result", "charged"),
    [
        (1, 1),
        (0, 1),
        (0.2, 1),
        (50.1, 51),
        (Estimate(50), 50),
        (Estimate(0), 1),
        (Estimate(49.5), 50),  # type: ignore[arg-type]
        (-1, 100),
        (float("nan"), 100),
        (float("inf"), 100),
        (None, 100),
        ("60", 100),
        (True, 100),
        (Estimate(-5), 100),
    ],
    ids=repr,
)
async def test_bl_26_whatever_an_estimator_returns_the_charge_is_a_whole_number_of_bytes(
    result: Any, charged: int
) -> None:
    """What is no size is a failed estimator: it is charged the whole capacity."""
    async with scenario(estimator=lambda info: result) as scene:
        call = await scene.run()
        assert call.lease is not None
        assert call.lease.bytes == charged
        assert type(call.lease.bytes) is int


@pytest.mark.parametrize("result", [101, 2**63, 10**400, 1e300, Estimate(10**30)], ids=lambda r: str(r)[:12])
async def test_bl_26_an_estimate_above_the_total_is_refused(result: Any) -> None:
    async with scenario(estimator=lambda info: result) as scene:
        call = await scene.run()
        problem = call.problem()
        assert (call.status, problem["reason"]) == (413, "too_large")
        assert problem["needed_bytes"] > problem["capacity_bytes"] == 100


async def test_bl_26_numbers_of_numpy_are_sizes() -> None:
    numpy = pytest.importorskip("numpy")
    for number in (numpy.int64(7), numpy.float32(6.5), Estimate(numpy.int32(7))):
        async with scenario(estimator=lambda info, number=number: number) as scene:
            call = await scene.run()
            assert call.lease is not None
            assert (call.lease.bytes, type(call.lease.bytes)) == (7, int)


# BL-31: the memory of bodies that wait


async def test_bl_31_a_waiting_body_is_held_once() -> None:
    size, count = MIB, 20
    body = json.dumps({"prompt": "x" * (size - 20)}).encode()

    def estimator(info: RequestInfo) -> int:
        return min(100, len(info.json["prompt"]))

    async with scenario(estimator=estimator, flow=lambda info: info.json["prompt"][:5]) as scene:
        holder = await scene.start(body)
        await until(lambda: scene.in_use == 100)
        half = len(body) // 2
        with traced() as memory:
            # Each body is a copy of its own, in two pieces.
            calls = [await scene.start(body[:half], body[half:]) for _ in range(count)]
            await until(lambda: scene.waiting == count)
            await settle()
        assert scene.admission.snapshot().buffered_bytes == count * len(body)
        assert memory.kept < (count + 2) * size
        for call in (holder, *calls):
            call.finish()


async def test_bl_31_packed_bodies_wait_as_they_came() -> None:
    body = gzip.compress(json.dumps({"prompt": "x" * MIB}).encode())
    async with scenario(estimator=lambda info: min(100, len(info.json["prompt"]))) as scene:
        first = await scene.start(body, headers=[(b"content-encoding", b"gzip")])
        await until(lambda: scene.in_use == 100)
        with traced() as memory:
            calls = [await scene.start(body, headers=[(b"content-encoding", b"gzip")]) for _ in range(10)]
            await until(lambda: scene.waiting == 10)
            await settle()
        assert scene.admission.snapshot().buffered_bytes == 10 * len(body)
        assert memory.kept < 2 * MIB
        for call in (first, *calls):
            call.finish()


async def test_bl_31_all_waiting_bodies_together_are_bounded() -> None:
    async with scenario(max_buffered_bytes=100) as scene:
        holder = await scene.start(cost=100)
        waiter = await scene.start(b"x" * 60, cost=100)
        call = await scene.run(b"x" * 60, cost=100)
        assert call.status == 429
        assert "max_buffered_bytes" in call.problem()["detail"]
        assert int(call.headers["retry-after"]) >= 1
        holder.finish()
        waiter.finish()


async def test_bl_31_a_body_cut_into_single_bytes_is_counted_with_what_its_messages_take() -> None:
    """Each message costs a hundred times its byte; unbounded, 1 MiB of body would hold 240 MiB."""
    async with scenario(max_buffered_bytes="2MiB", max_body_bytes="1MiB") as scene:
        upload = Upload(1, MIB)
        call = scene.call()
        call.receive = upload.receive  # type: ignore[method-assign]
        with traced() as memory:
            await call.run()
        assert call.status == 429
        assert memory.peak < 4 * MIB


async def test_bl_31_empty_messages_without_end_are_bounded_too() -> None:
    async with scenario(max_buffered_bytes="1MiB") as scene:
        upload = Upload(0, 10**9)
        call = scene.call()
        call.receive = upload.receive  # type: ignore[method-assign]
        await call.run()
        assert call.status == 429
        assert upload.received < 10_000
