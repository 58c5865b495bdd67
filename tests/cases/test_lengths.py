"""Lengths that lie, and what is refused unread: BL-20 to BL-22."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cases.harness import StreamedCost, chunks, cost, scenario
from tests.cases.sizing import MIB, Upload, traced

pytestmark = pytest.mark.anyio


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
        headers = [(b"content-length", b"11" if case == "declared" else b"10")]
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
