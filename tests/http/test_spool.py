"""Long uploads are kept in memory of their own, and come out as they came in."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_admission import Admission, GPUAdmission
from gpu_admission.http import spool
from gpu_admission.http.body import LONGEST_SPOOLED, SPOOLED_BEYOND
from gpu_admission.http.spool import Spool
from tests.cases.harness import Call, answer, chunks, read_body

pytestmark = pytest.mark.anyio


@given(st.lists(st.binary(max_size=40), max_size=40), st.integers(1, 30))
def test_what_is_appended_is_taken_as_it_was_cut_and_may_be_looked_at_before(
    pieces: list[bytes], block: int
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(spool, "_BLOCK", block)
        kept, whole = Spool(), b"".join(pieces)
        for piece in pieces:
            kept.append(piece)
        at = 0
        for piece in pieces:
            assert kept.look(0, len(whole) - at) == whole[at:]
            assert kept.take(len(piece)) == piece
            at += len(piece)


def test_it_may_be_filled_while_it_is_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "_BLOCK", 16)
    kept, given_, taken = Spool(), b"", b""
    dice = random.Random(1)
    for _ in range(500):
        piece = dice.randbytes(dice.randrange(40))
        kept.append(piece)
        given_ += piece
        size = dice.randrange(len(given_) - len(taken) + 1)
        taken += kept.take(size)
        assert given_.startswith(taken)
    assert len(taken) > 5000


@pytest.mark.parametrize("size", [100, 64 * 1024, LONGEST_SPOOLED, LONGEST_SPOOLED + 1])
async def test_an_app_gets_a_long_body_cut_as_it_came_whatever_its_pieces(size: int) -> None:
    body = random.Random(size).randbytes(SPOOLED_BEYOND + 5 * size + 7)
    cut = [
        body[:SPOOLED_BEYOND],
        b"",
        *(body[at : at + size] for at in range(SPOOLED_BEYOND, len(body), size)),
    ]
    sent, got = chunks(*cut), []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while True:
            message = await receive()
            got.append(message)
            if not message["more_body"]:
                break
        await answer(send)

    call = Call(GPUAdmission(app, capacity=100, estimator=lambda info: len(info.body) and 1), messages=sent)
    await call.run()
    assert call.status == 200
    assert got == sent


async def test_an_estimator_reads_all_of_a_long_body_and_the_app_too() -> None:
    body = random.Random(2).randbytes(2**20)
    seen: list[bytes] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(await read_body(receive))
        await answer(send)

    def estimate(info: Any) -> int:
        seen.append(info.body)
        return 1

    await Call(
        GPUAdmission(app, capacity=100, estimator=estimate),
        *(body[at : at + 5000] for at in range(0, len(body), 5000)),
    ).run()
    assert seen == [body, body]


async def test_a_long_upload_takes_little_of_the_heap() -> None:
    """What lies in the heap beside pieces of others can't be given back to the system."""
    admission = Admission(capacity=10, estimator=lambda info: 10)
    taken: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError

    class Sent(Call):
        async def receive(self) -> Any:
            if self.receives > 120:
                taken.append(tracemalloc.get_traced_memory()[0])
            self.receives += 1
            if self.receives > 129:
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": bytes(bytearray(64 * 1024)), "more_body": True}

    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        await Sent(GPUAdmission(app, admission=admission), messages=[]).run()
    finally:
        tracemalloc.stop()
    assert max(taken) - before < 2 * SPOOLED_BEYOND + 2**18
    assert admission.snapshot().buffered_bytes == 0
