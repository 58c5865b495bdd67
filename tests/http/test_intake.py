"""From request to lease: who picks lane and flow, and what happens when a picker fails."""

from __future__ import annotations

import gzip
import json
import logging
from typing import Any

import pytest

from gpu_admission import Admission, Lane, RequestInfo
from gpu_admission.types import Message
from tests.cases.harness import StreamedCost, scenario

pytestmark = pytest.mark.anyio
LANES = [Lane("short"), Lane("long", limit=0.5)]


def by_length(info: RequestInfo) -> str:
    return "long" if len(info.json["prompt"]) > 3 else "short"


@pytest.mark.parametrize(("prompt", "lane"), [("hi", "short"), ("hello", "long")])
@pytest.mark.parametrize("packed", [False, True])
async def test_the_lane_is_picked_by_what_the_body_says(prompt: str, lane: str, packed: bool) -> None:
    body = json.dumps({"prompt": prompt}).encode()
    headers = [(b"content-encoding", b"gzip")] if packed else []
    async with scenario(lanes=LANES, lane=by_length) as scene:
        call = await scene.run(gzip.compress(body) if packed else body, headers=headers)
        assert call.lease is not None
        assert call.lease.lane == lane


@pytest.mark.parametrize("name", ["middle", None, 5, ["long"], {}], ids=repr)
async def test_a_lane_that_there_is_not_is_the_first(name: Any) -> None:
    async with scenario(lanes=LANES, lane=lambda info: name) as scene:
        call = await scene.run(b"{}")
        assert call.lease is not None
        assert call.lease.lane == "short"


@pytest.mark.parametrize("setting", ["lane", "flow"])
async def test_a_picker_that_fails_loses_no_request(setting: str, caplog: pytest.LogCaptureFixture) -> None:
    def fails(info: RequestInfo) -> str:
        raise ZeroDivisionError

    settings: dict[str, Any] = {"lanes": LANES, setting: fails}
    async with scenario(**settings) as scene:
        with caplog.at_level(logging.ERROR):
            call = await scene.run(b"{}")
        assert call.status == 200
        assert call.lease is not None
        # Where what a client sends makes the picker fail, that must not win it the first lane.
        assert call.lease.lane == ("long" if setting == "lane" else "short")
    assert f"{setting} failed on * with ZeroDivisionError" in caplog.text


async def test_an_unreadable_body_waits_in_the_last_lane_without_a_log_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with scenario(lanes=LANES, lane=by_length) as scene:
        with caplog.at_level(logging.ERROR):
            call = await scene.run(b"not json")
        assert call.lease is not None
        assert call.lease.lane == "long"
    assert caplog.text == ""


@pytest.mark.parametrize(("needs_body", "body"), [(False, b""), (True, b"question")])
async def test_a_body_is_read_for_a_picker_unless_it_says_that_it_needs_none(
    needs_body: bool, body: bytes
) -> None:
    bodies: list[bytes] = []

    def flow(info: RequestInfo) -> str:
        bodies.append(info.body)
        return info.headers["x-cost"]

    flow.needs_body = needs_body  # type: ignore[attr-defined]
    async with scenario(estimator=StreamedCost(), flow=flow) as scene:
        call = await scene.run(b"question")
        assert call.read == b"question"
    assert bodies == [body]


async def test_a_packed_body_that_only_a_picker_reads_may_be_unreadable() -> None:
    def flow(info: RequestInfo) -> Any:
        return info.json["user"]

    async with scenario(estimator=StreamedCost(), flow=flow) as scene:
        call = await scene.run(b"not packed", headers=[(b"content-encoding", b"gzip")])
        assert (call.status, call.read) == (200, b"not packed")


@pytest.mark.parametrize("setting", ["lane", "flow", "classify"])
def test_a_picker_is_a_plain_function(setting: Any) -> None:
    async def picks(info: RequestInfo) -> str:
        return "short"

    with pytest.raises(TypeError, match=f"{setting} must be a plain function"):
        Admission(**{"capacity": 100, "estimator": 1, setting: picks})  # type: ignore[arg-type]


async def test_each_flow_has_its_own_share_of_the_queue() -> None:
    async with scenario(flow=lambda info: info.headers["x-user"], max_waiting_per_flow=1) as scene:
        holder = await scene.start(cost=100, headers=[(b"x-user", b"a")])
        waiting = [await scene.start(cost=100, headers=[(b"x-user", user)]) for user in (b"a", b"b")]
        assert scene.waiting == 2
        refused = await scene.run(cost=100, headers=[(b"x-user", b"a")])
        assert "max_waiting_per_flow=1" in refused.problem()["detail"]
        for call in (holder, *waiting):
            call.finish()


async def test_a_request_is_named_where_an_observer_asks_for_it() -> None:
    from gpu_admission.http.request_id import current_request_id
    from gpu_admission.types import Event, Receive, Scope, Send
    from tests.cases.harness import answer

    class Names:
        needs_request_id = True

        def __call__(self, event: Event) -> None:
            """It only wants the id."""

    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(current_request_id())
        await answer(send)

    async with scenario(app, observers=[Names()]) as scene:
        for sent in (b"abc-1", b"", b"x" * 129, b"new\nline", b"\xff"):
            await scene.run(headers=[(b"x-request-id", sent)])
    assert seen[0] == "abc-1"
    assert all(len(name) == 32 for name in seen[1:])
    assert len(set(seen)) == 5


def reads(info: RequestInfo) -> int:
    return 1 + len(info.body)


async def test_what_the_servers_receive_raises_is_the_apps_to_hear_and_no_failure_of_the_estimator(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with scenario(estimator=reads) as scene:
        call = scene.call(b"")

        async def receive() -> Message:
            raise EOFError

        call.receive = receive  # type: ignore[method-assign]
        await call.run()
        assert isinstance(call.error, EOFError)
        assert call.lease is not None
        assert (call.sent, call.lease.bytes) == ([], 100)
    assert caplog.text == ""


@pytest.mark.parametrize("declared", [b"1", None])
async def test_a_limit_that_an_outer_middleware_puts_on_the_body_answers_as_ever(
    declared: bytes | None,
) -> None:
    starlette = pytest.importorskip("starlette.middleware.body_limit", reason="came with Starlette 1.10")
    headers = [] if declared is None else [(b"content-length", declared)]
    async with scenario(estimator=reads) as scene:
        limited = starlette.RequestBodyLimitMiddleware(scene.app, max_body_size=5)
        call = scene.call(b"123", b"456", app=limited, headers=headers)
        await call.run()
        assert call.status == 413
        assert scene.in_use == 0
