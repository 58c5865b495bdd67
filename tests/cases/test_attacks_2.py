"""What a second round of attacks found: many small bodies in one step, and tracebacks that quote a client."""

from __future__ import annotations

import asyncio
import gzip
import logging
import struct
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from gpu_admission import Admission, GPUAdmission, RequestInfo, current_lease
from gpu_admission.bodies.share import STEP_BYTES, UNCOUNTED_BYTES, StepShare
from gpu_admission.estimators import Constant, Learned
from gpu_admission.runtime.loop import running_asyncio
from gpu_admission.types import Receive, Scope, Send
from gpu_admission.workloads.audio import LEAST_BYTES_PER_SECOND, seconds
from tests.cases.harness import Call, answer, read_body, scenario

pytestmark = pytest.mark.anyio
GZIP = [(b"content-encoding", b"gzip")]
PROMPT = "a client's prompt\nCRITICAL gpu_admission a forged line"


async def app_behind(scope: Scope, receive: Receive, send: Send) -> None:
    await read_body(receive)
    await answer(send)


class Steps:
    """An estimator that says in which step of the event loop it was asked."""

    def __init__(self) -> None:
        self.now = 0
        self.sizes: dict[int, list[int]] = {}

    def __call__(self, info: RequestInfo) -> int:
        self.sizes.setdefault(self.now, []).append(len(info.body))
        return 1

    async def count(self) -> None:
        while True:
            await anyio.lowlevel.checkpoint()
            self.now += 1


async def read_together(body: bytes, count: int, headers: list[Any]) -> Steps:
    """The steps in which ``count`` requests that came in one step were read."""
    steps = Steps()
    app = GPUAdmission(app_behind, capacity=1000, estimator=steps)
    calls = [Call(app, body, headers=headers) for _ in range(count)]
    async with anyio.create_task_group() as counting:
        counting.start_soon(steps.count)
        async with anyio.create_task_group() as group:
            for call in calls:
                group.start_soon(call.run)
        counting.cancel_scope.cancel()
    assert [call.status for call in calls] == [200] * count
    assert sum(map(len, steps.sizes.values())) == count
    return steps


@pytest.mark.parametrize("size", [1024, 4096, 16 * 1024, 30 * 1024])
async def test_small_bodies_that_come_together_are_read_a_share_in_each_step_of_the_loop(size: int) -> None:
    steps = await read_together(b"x" * size, 50, [])
    assert max(map(sum, steps.sizes.values())) <= 2 * STEP_BYTES
    assert len(steps.sizes) >= 50 * size // (2 * STEP_BYTES)


async def test_packed_small_bodies_take_the_share_of_what_they_may_unpack_to() -> None:
    steps = await read_together(gzip.compress(b"x" * 16_000), 20, GZIP)
    assert max(map(sum, steps.sizes.values())) <= 2 * STEP_BYTES


async def test_the_shortest_bodies_wait_for_no_share() -> None:
    share = StepShare()
    assert share.has_room(STEP_BYTES)
    async with scenario(estimator=Steps()) as scene:
        scene.admission.share = share
        call = await scene.start(b"x" * UNCOUNTED_BYTES)
        await call.started.wait()
        call.finish()
    assert not share.has_room(1)


async def test_on_asyncio_a_share_is_whole_again_in_the_next_step_although_nobody_waited() -> None:
    share, loop = StepShare(), running_asyncio()
    for _ in range(3 if loop is not None else 0):
        assert share.has_room(STEP_BYTES, loop)
        assert not share.has_room(1, loop)
        await anyio.lowlevel.checkpoint()


async def test_on_asyncio_bodies_that_come_one_after_another_wait_for_no_step() -> None:
    class Impatient(StepShare):
        async def enter(self, size: int) -> None:
            raise AssertionError("it waited")

    if running_asyncio() is None:
        return
    async with scenario(estimator=Steps()) as scene:
        scene.admission.share = Impatient()
        for _ in range(3 * STEP_BYTES // 4096):
            call = await scene.start(b"x" * 4096)
            await call.started.wait()
            call.finish()


async def test_a_share_whose_loop_has_ended_is_whole_again_for_one_who_waits() -> None:
    share = StepShare()
    ended = asyncio.new_event_loop()
    assert share.has_room(STEP_BYTES, ended)
    ended.close()
    await share.enter(STEP_BYTES)
    assert not share.has_room(1)


async def test_a_share_is_given_to_those_who_wait_in_their_order() -> None:
    share, order = StepShare(), list[int]()

    async def enter(number: int) -> None:
        await share.enter(STEP_BYTES // 2)
        order.append(number)

    async with anyio.create_task_group() as group:
        for number in range(9):
            await share.enter(1) if number == 4 else None
            group.start_soon(enter, number)
    assert sorted(order) == list(range(9))


async def test_one_who_is_cancelled_before_its_share_leaves_the_others_theirs() -> None:
    share = StepShare()
    await share.enter(STEP_BYTES)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await share.enter(STEP_BYTES)
    assert scope.cancelled_caught
    with anyio.fail_after(20):
        await share.enter(STEP_BYTES)


async def test_a_body_larger_than_a_share_is_read_all_the_same() -> None:
    with anyio.fail_after(20):
        share = StepShare()
        await share.enter(10 * STEP_BYTES)
        await share.enter(10 * STEP_BYTES)


# write into logs: a traceback shows the exception that was being handled, too


async def fails(scope: Scope, receive: Receive, send: Send) -> None:
    raise ValueError(PROMPT)


def broken(*about: object) -> Any:
    raise KeyError("the operator's own function")


class Unteachable(Learned):
    def observe(self, *about: object) -> None:
        broken()


@pytest.mark.parametrize(
    "settings",
    [{"observers": [broken]}, {"classify": broken}, {"on_reject": broken, "capacity": 1}],
    ids=["observer", "classify", "on_reject"],
)
async def test_the_log_of_a_broken_setting_does_not_quote_the_request_that_failed(
    settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    app = GPUAdmission(fails, **{"capacity": 100, "estimator": 10, **settings})
    await Call(app, b"{}").run()
    records = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert records, "that it is broken is told"
    lines = "".join(logging.Formatter().format(record) for record in caplog.records)
    assert "KeyError" in lines
    assert "test_attacks_2.py:" in lines, "and where"
    assert "prompt" not in lines
    assert "forged" not in lines


async def test_the_log_of_what_can_not_learn_does_not_quote_what_was_handled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    admission = Admission(capacity=100, estimator=Unteachable(Constant(10)))

    async def handles(scope: Scope, receive: Receive, send: Send) -> None:
        lease = current_lease()
        assert lease is not None
        lease.record_peak(5)
        try:
            raise ValueError(PROMPT)
        except ValueError:
            lease.finish(None)
        await answer(send)

    await Call(GPUAdmission(handles, admission=admission), b"{}").run()
    lines = "".join(logging.Formatter().format(record) for record in caplog.records)
    assert "could not learn" in lines
    assert "prompt" not in lines
    assert admission.in_use == 0


# slip by, and choose its price


@pytest.mark.parametrize(
    "path",
    [
        "//v1/chat/completions",
        "/v1//chat/completions",
        "/v1/x/../chat/completions",
        "/v1/./chat/completions",
        "/health/../v1/chat/completions",
        "/v1/embeddings/../chat/completions",
        "/v1/chat/completions/../../chat/completions/",
    ],
)
async def test_a_path_that_a_proxy_makes_plain_is_metered_as_the_plain_one(path: str) -> None:
    admission = Admission(
        capacity=100,
        estimator={"/v1/embeddings/**": 1, "/v1/chat/completions": 50},
        routes=["/v1/chat/*", "/v1/embeddings/**"],
        exclude=["/health/**"],
    )
    assert (await charged(admission, path)) == 50


@pytest.mark.parametrize("path", ["/v1/work/../health", "/v1/work//", "/v1/.work", "/v1/static//../x"])
async def test_a_path_that_is_metered_as_it_came_stays_metered(path: str) -> None:
    admission = Admission(capacity=100, estimator=50, routes=["/v1/**"], exclude=["/health", "/v1/health"])
    assert (await charged(admission, path)) == 50


@pytest.mark.parametrize("path", ["/health", "/health/", "//health", "/./health"])
async def test_an_excluded_path_stays_free_however_it_is_written_when_it_is_plain(path: str) -> None:
    admission = Admission(capacity=100, estimator=50, routes=["/v1/**"], exclude=["/health"])
    assert (await charged(admission, path)) == 0


async def charged(admission: Admission, path: str) -> int:
    """Bytes that a request to ``path`` holds, as the app behind sees them."""
    seen: list[int] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(admission.in_use)
        await app_behind(scope, receive, send)

    await Call(GPUAdmission(app, admission=admission), b"{}", path=path).run()
    return seen[0]


@pytest.mark.parametrize("samples", [768_001, 2**32 - 1])
def test_a_wav_that_states_an_impossible_rate_is_taken_for_the_longest_that_it_may_be(samples: int) -> None:
    made = struct.pack("<4sI4s4sIHHIIHH", b"RIFF", 100_036, b"WAVE", b"fmt ", 16, 1, 1, samples, 0, 2, 16)
    head = made + struct.pack("<4sI", b"data", 100_000)
    assert seconds(head, 100_044) == 100_044 / LEAST_BYTES_PER_SECOND
