"""Raw ASGI calls, an app whose work ends when told, and what must hold at the end of every scenario.

Nothing here sleeps: a scenario moves on by events, and looks when all tasks are blocked.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import anyio.to_thread

from gpu_admission import Admission, GPUAdmission, Lease, RequestInfo, current_lease
from gpu_admission.types import ASGIApp, Event, Message, Receive, Scope, Send

CAPACITY = 100
Header = tuple[bytes, bytes]


def cost(info: RequestInfo) -> int:
    """The estimator of most scenarios: the body is read, the charge is in a header."""
    return int(info.headers["x-cost"])


class StreamedCost:
    """The same for bodies that the app streams by itself."""

    needs_body = False

    def __call__(self, info: RequestInfo) -> int:
        return cost(info)


def http_scope(**changes: Any) -> Scope:
    """A hand-made ``http`` scope, as a server of ASGI 3 makes it."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "server": ("127.0.0.1", 8000),
        "client": ("127.0.0.1", 50000),
        "scheme": "http",
        "root_path": "",
        "method": "POST",
        "path": "/work",
        "query_string": b"",
        "headers": [],
    }
    return {**scope, **changes}


def chunks(*pieces: bytes, complete: bool = True) -> list[Message]:
    """``http.request`` messages; the last one ends the body, unless more is to come."""
    last = len(pieces) - 1
    return [
        {"type": "http.request", "body": piece, "more_body": not complete or number < last}
        for number, piece in enumerate(pieces)
    ]


class Call:
    """One request: what its client sends, what it is answered, and what the app saw of it."""

    def __init__(
        self,
        app: ASGIApp,
        *pieces: bytes,
        cost: int = 1,
        headers: Iterable[Header] = (),
        messages: Sequence[Message] | None = None,
        **scope: Any,
    ) -> None:
        self.app = app
        self.scope = http_scope(headers=[(b"x-cost", b"%d" % cost), *headers], call=self, **scope)
        self._coming = list(chunks(*(pieces or (b"",))) if messages is None else messages)
        self._said = list(self._coming)
        self._news = anyio.Event()
        self.hung_up = False
        self.receives = 0
        self.sent: list[Message] = []
        self.send_fails_at = -1
        self.error: BaseException | None = None
        self.cancelled = False
        self.done = anyio.Event()
        self.scope_of_cancel = anyio.CancelScope()
        self.started = anyio.Event()
        """The app behind has read the body."""
        self.may_finish = anyio.Event()
        self.read: bytes | None = None
        self.lease: Lease | None = None

    # the client's side

    def feed(self, *messages: Message) -> None:
        """More arrives from the client."""
        self._coming += messages
        self._said += messages
        self._wake()

    def hang_up(self) -> None:
        self.hung_up = True
        self._wake()

    def _wake(self) -> None:
        news, self._news = self._news, anyio.Event()
        news.set()

    def finish(self) -> None:
        """Let the app end its work."""
        self.may_finish.set()

    def cancel(self) -> None:
        self.scope_of_cancel.cancel()

    # the server's side

    async def receive(self) -> Message:
        self.receives += 1
        while not self._coming and not self.hung_up:
            await self._news.wait()
        return self._coming.pop(0) if self._coming else {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if len(self.sent) == self.send_fails_at:
            raise OSError("the connection is gone")
        self.sent.append(message)
        await anyio.lowlevel.checkpoint()

    async def run(self) -> None:
        """Call the app as a server does; what comes out of it is kept in ``error``."""
        try:
            with self.scope_of_cancel:
                try:
                    await self.app(self.scope, self.receive, self.send)
                except anyio.get_cancelled_exc_class():
                    self.cancelled = True
                    raise
        except Exception as error:
            self.error = error
        finally:
            self.done.set()

    # what came of it

    @property
    def starts(self) -> list[Message]:
        return [message for message in self.sent if message["type"] == "http.response.start"]

    @property
    def status(self) -> int:
        (start,) = self.starts
        status: int = start["status"]
        return status

    @property
    def headers(self) -> dict[str, str]:
        (start,) = self.starts
        pairs = [
            (name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in start["headers"]
        ]
        assert len(dict(pairs)) == len(pairs), "a header was sent twice"
        return dict(pairs)

    @property
    def body(self) -> bytes:
        return _bodies(self.sent)

    def problem(self) -> dict[str, Any]:
        """The refusal that it was answered with."""
        assert self.headers["content-type"] == "application/problem+json"
        assert self.headers["cache-control"] == "no-store"
        problem: dict[str, Any] = json.loads(self.body)
        assert problem["status"] == self.status
        assert problem["reason"] == self.headers["x-gpu-admission-reason"]
        return problem

    @property
    def ended(self) -> bool:
        return self.done.is_set()

    @property
    def reached_app(self) -> bool:
        return self.lease is not None

    def check(self) -> None:
        """One answer to each client that stayed, and the app got what was sent."""
        if not (self.hung_up or self.cancelled or self.error or self.send_fails_at >= 0):
            assert len(self.starts) == 1, f"{len(self.starts)} answers: {self.sent}"
        assert len(self.starts) <= 1
        if self.read is not None and not self.hung_up:
            assert self.read == _bodies(self._said)


def _bodies(messages: Iterable[Message]) -> bytes:
    return b"".join(message.get("body", b"") for message in messages)


async def read_body(receive: Receive) -> bytes:
    """The body, read by hand to its end."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            break
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


async def answer(send: Send, *pieces: bytes, status: int = 200) -> None:
    await send({"type": "http.response.start", "status": status, "headers": []})
    for piece in pieces:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def working(scope: Scope, receive: Receive, send: Send) -> None:
    """Reads its body, works until the call may finish, and answers."""
    call: Call = scope["call"]
    call.lease = current_lease()
    call.read = await read_body(receive)
    call.started.set()
    await call.may_finish.wait()
    await answer(send, b"done")


class Scene:
    """An app behind an admission of 100 bytes, and the calls to it."""

    def __init__(self, app: ASGIApp, group: anyio.abc.TaskGroup, settings: dict[str, Any]) -> None:
        self.group = group
        self.calls: list[Call] = []
        self.events: list[Event] = []
        options: dict[str, Any] = {"capacity": CAPACITY, "estimator": cost, "timeout": 30.0, **settings}
        options["observers"] = [self.observe, *settings.get("observers", ())]
        self.admission = Admission(**options)
        self.app: ASGIApp = GPUAdmission(app, admission=self.admission)

    def observe(self, event: Event) -> None:
        self.events.append(event)
        self.check_step()

    def check_step(self) -> None:
        snapshot = self.admission.snapshot()
        assert snapshot.in_use >= 0
        if snapshot.mode == "enforce":
            assert snapshot.peak <= snapshot.capacity

    @property
    def in_use(self) -> int:
        return self.admission.snapshot().in_use

    @property
    def waiting(self) -> int:
        return self.admission.snapshot().waiting

    def call(self, *pieces: bytes, app: ASGIApp | None = None, **changes: Any) -> Call:
        """A call that is not on its way yet."""
        call = Call(app or self.app, *pieces, **changes)
        self.calls.append(call)
        return call

    async def start(self, *pieces: bytes, **changes: Any) -> Call:
        """A call on its way; returns when it has come as far as it can by itself."""
        call = self.call(*pieces, **changes)
        self.group.start_soon(call.run)
        await settle()
        self.check_step()
        return call

    async def run(self, *pieces: bytes, **changes: Any) -> Call:
        """A call that is over, with work that takes no time."""
        call = self.call(*pieces, **changes)
        call.finish()
        await call.run()
        self.check_step()
        return call

    async def check_end(self) -> None:
        """What holds at the end of every scenario."""
        with anyio.fail_after(10):
            for call in self.calls:
                await call.done.wait()
                call.check()
        self.check_rest()
        if not self.admission.snapshot().draining:
            await self._check_small_one()

    async def _check_small_one(self) -> None:
        """A small request afterwards starts at once."""
        async with self.admission.lease(1, timeout=0) as lease:
            assert lease.waited == 0.0
        self.check_rest()

    def check_rest(self) -> None:
        rest = self.admission.snapshot()
        assert (rest.in_use, rest.running, rest.waiting, rest.waiting_bytes) == (0, 0, 0, 0)
        assert rest.buffered_bytes == 0
        assert sum(lane.in_use + lane.waiting for lane in rest.lanes) == 0


async def settle() -> None:
    """Until every task waits for something; a cancellation that is on its way has arrived by then."""
    for _ in range(3):
        await anyio.wait_all_tasks_blocked()
        await anyio.lowlevel.checkpoint()


async def until(condition: Callable[[], bool]) -> None:
    """Until ``condition`` holds, for what worker threads bring about: who waits for them is blocked."""
    with anyio.fail_after(10):
        while not condition():
            await anyio.to_thread.run_sync(_nothing)


def _nothing() -> None:
    """A turn for other threads."""


@asynccontextmanager
async def scenario(app: ASGIApp = working, **settings: Any) -> AsyncIterator[Scene]:
    """A scene whose end is checked: nothing held, nobody waiting, no task left over."""
    before = _tasks()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            scene = Scene(app, group, settings)
            yield scene
            await scene.check_end()
        await settle()
        assert _tasks() <= before


def _tasks() -> set[Any]:
    """All tasks of the loop; trio keeps its own books, and has no task that nobody waits for."""
    return set(asyncio.all_tasks()) if asyncio._get_running_loop() is not None else set()
