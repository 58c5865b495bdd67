"""The host memory of bodies that wait: BL-31."""

from __future__ import annotations

import gzip
import json

import pytest

from gpu_admission import RequestInfo
from tests.cases.harness import scenario, settle, until
from tests.cases.sizing import MIB, Upload, traced

pytestmark = pytest.mark.anyio


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
