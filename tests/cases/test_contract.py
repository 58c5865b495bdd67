"""The ASGI contract: background work, errors, context, other scopes, construction: BL-08 to BL-19."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.responses import Response

from gpu_admission import GPUAdmission, Rejected, current_lease
from gpu_admission.types import Message, Receive, Scope, Send
from tests.cases.harness import (
    Call,
    answer,
    cost,
    read_body,
    scenario,
    settle,
)

pytestmark = pytest.mark.anyio


# BL-08: background tasks


@pytest.mark.parametrize(("hold", "held"), [("app", 60), ("response", 0)])
async def test_bl_08_a_background_task_ends_by_itself_although_the_client_closed(
    hold: str, held: int
) -> None:
    ended: list[bool] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        call: Call = scope["call"]
        await read_body(receive)

        async def background() -> None:
            call.started.set()
            await call.may_finish.wait()
            ended.append(True)

        await Response(b"ok", background=BackgroundTask(background))(scope, receive, send)

    async with scenario(app, hold=hold) as scene:
        call = await scene.start(b"question", cost=60)
        assert call.body == b"ok"
        call.hang_up()
        await settle()
        assert scene.in_use == held
        assert not call.ended
        call.finish()
        await call.done.wait()
        assert ended == [True]


# BL-09: errors after the response started


class OutOfMemoryError(RuntimeError):
    """Looks like torch's."""


OutOfMemoryError.__module__ = "torch"


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ValueError("boom"), "error"),
        (OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "oom"),
        (Rejected("queue_full", "from a nested call"), "error"),
    ],
    ids=["plain", "out of memory", "nested refusal"],
)
async def test_bl_09_an_error_after_the_response_started_comes_out_as_it_is(
    error: Exception, outcome: str
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"part", "more_body": True})
        raise error

    async with scenario(app) as scene:
        call = await scene.run(b"question")
        assert call.error is error
        assert len(call.starts) == 1
        assert call.body == b"part"
        released = [event for event in scene.events if event.kind == "released"]
        assert [event.outcome for event in released] == [outcome]


async def test_bl_09_growing_a_lease_past_the_capacity_inside_the_app_is_the_apps_error() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        lease = current_lease()
        assert lease is not None
        await send({"type": "http.response.start", "status": 200, "headers": []})
        lease.resize(101)

    async with scenario(app) as scene:
        call = await scene.run(b"question")
        assert isinstance(call.error, Rejected)
        assert len(call.starts) == 1


async def test_bl_09_what_the_failed_app_held_is_freed_as_soon_as_its_error_is() -> None:
    """A cycle through the error would keep the frames, and so the tensors, until a collection."""

    class Tensor:
        pass

    refs: list[weakref.ref[Tensor]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        tensor = Tensor()
        refs.append(weakref.ref(tensor))
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    outer = GPUAdmission(app, capacity=100, estimator=cost)
    gc.disable()
    try:
        for _ in range(2):
            call = Call(outer, b"question")
            with pytest.raises(OutOfMemoryError):
                await outer(call.scope, call.receive, call.send)
        assert [ref() for ref in refs] == [None, None]
    finally:
        gc.enable()


# BL-10: nothing was answered


async def test_bl_10_an_app_that_answers_nothing_to_a_client_that_left_is_left_alone() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)
        assert (await receive())["type"] == "http.disconnect"

    async with scenario(app) as scene:
        call = await scene.start(b"question", cost=60)
        call.hang_up()
        await call.done.wait()
        assert (call.sent, call.error) == ([], None)


# BL-11: exceptions keep their identity


@pytest.mark.parametrize(
    "error",
    [ZeroDivisionError("custom"), HTTPException(418), asyncio.CancelledError(), KeyboardInterrupt()],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("waits", [False, True])
async def test_bl_11_the_very_same_exception_comes_out(error: BaseException, waits: bool) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        call: Call = scope["call"]
        if call.scope["path"] == "/hold":
            await call.may_finish.wait()
            await answer(send)
            return
        raise error

    async with scenario(app) as scene:
        holder = await scene.start(path="/hold", cost=100 if waits else 1)
        call = Call(scene.app, b"question", cost=99)
        if waits:
            scene.group.start_soon(_finish_later, holder)
        with pytest.raises(type(error)) as caught:
            await scene.app(call.scope, call.receive, call.send)
        assert caught.value is error
        holder.finish()


async def _finish_later(call: Call) -> None:
    await settle()
    call.finish()


# BL-14: context variables


async def test_bl_14_context_variables_pass_in_both_directions() -> None:
    inside: ContextVar[str] = ContextVar("inside", default="unset")
    outside: ContextVar[str] = ContextVar("outside", default="unset")
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)
        seen.append(outside.get())
        inside.set("by the endpoint")
        await answer(send)

    async with scenario(app) as scene:
        call = Call(scene.app, b"question")
        outside.set("by the wrapper")
        await scene.app(call.scope, call.receive, call.send)
        assert seen == ["by the wrapper"]
        assert inside.get() == "by the endpoint"
        assert current_lease() is None


async def test_bl_14_the_scope_is_the_same_object_and_is_left_clean() -> None:
    seen: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append((scope, scope["gpu_admission.lease"], current_lease()))
        scope["route"] = "written by the router"
        await answer(send)

    async with scenario(app) as scene:
        call = await scene.run(b"question")
        ((scope, in_scope, current),) = seen
        assert scope is call.scope
        assert in_scope is current
        assert call.scope["route"] == "written by the router"
        assert "gpu_admission.lease" not in call.scope


# BL-15: other scopes


@pytest.mark.parametrize("kind", ["lifespan", "websocket", "foo"])
async def test_bl_15_other_scopes_pass_through_untouched(kind: str) -> None:
    seen: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append((scope, receive, await receive()))
        await send({"type": f"{kind}.answer"})

    async with scenario(app) as scene:
        scope: Scope = {"type": kind}
        sent: list[Message] = []

        async def receive() -> Message:
            return {"type": f"{kind}.startup"}

        async def send(message: Message) -> None:
            sent.append(message)

        await scene.app(scope, receive, send)
        assert seen == [(scope, receive, {"type": f"{kind}.startup"})]
        assert seen[0][0] is scope
        assert scope == {"type": kind}
        assert sent == [{"type": f"{kind}.answer"}]
        assert {event.kind for event in scene.events} <= {"started"}


async def test_bl_15_the_startup_and_shutdown_of_the_app_behind_run() -> None:
    ran: list[str] = []

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        ran.append("startup")
        yield
        ran.append("shutdown")

    app = GPUAdmission(Starlette(lifespan=lifespan), capacity=100, estimator=1)
    coming = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    sent: list[Message] = []

    async def receive() -> Message:
        return coming.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)
    assert ran == ["startup", "shutdown"]
    assert [m["type"] for m in sent] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


# BL-17: no lifespan at all


async def test_bl_17_twenty_cold_requests_at_once_need_no_startup() -> None:
    async with scenario() as scene:
        calls = [scene.call(b"question", cost=10) for _ in range(20)]
        for call in calls:
            scene.group.start_soon(call.run)
        await settle()
        assert (scene.in_use, scene.waiting) == (100, 10)
        for call in calls:
            call.finish()
        for call in calls:
            await call.done.wait()
            assert call.status == 200


# BL-18: built twice


async def test_bl_18_a_rebuilt_middleware_stack_shares_the_budget_that_it_was_given() -> None:
    async with scenario() as scene:
        again = GPUAdmission(scene.app.app, admission=scene.admission)  # type: ignore[attr-defined]
        first = await scene.start(b"question", cost=60)
        second = await scene.start(b"question", cost=60, app=again)
        assert (scene.in_use, scene.waiting) == (60, 1)
        first.finish()
        second.finish()


async def test_bl_18_two_apps_with_equal_settings_have_a_budget_each() -> None:
    one = GPUAdmission(answering, capacity=100, estimator=1)
    other = GPUAdmission(answering, capacity=100, estimator=1)
    assert one.admission is not other.admission


async def answering(scope: Scope, receive: Receive, send: Send) -> None:
    await answer(send)


# BL-19: answers without a body


@pytest.mark.parametrize(("reason", "status"), [("queue_full", 429), ("too_large", 413), ("draining", 503)])
async def test_bl_19_a_refused_head_request_gets_headers_only(reason: str, status: int) -> None:
    async with scenario(methods=["POST", "HEAD"], max_waiting=0) as scene:
        holder = await scene.start(cost=100)
        if reason == "draining":
            scene.admission.drain()
        call = await scene.run(method="HEAD", cost=101 if reason == "too_large" else 50)
        assert call.status == status
        assert call.headers["x-gpu-admission-reason"] == reason
        assert call.body == b""
        assert call.sent[-1] == {"type": "http.response.body", "body": b""}
        holder.finish()


async def test_bl_19_nothing_is_added_to_an_answer_that_has_no_body() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(status_code=204)(scope, receive, send)

    async with scenario(app) as scene:
        call = await scene.run(b"question")
        plain = Call(app, b"question")
        await plain.run()
        assert call.sent == plain.sent
