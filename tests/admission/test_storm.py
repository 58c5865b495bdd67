"""Ten thousand requests that end in every way at every point, and nothing is left of them.

Each is called as a server calls it. Bodies come in pieces, clients hang up, tasks are
cancelled, time jumps past timeouts, ``send`` fails, and the app raises, resizes, keeps and
releases; when all are over the budget is whole, and at no step was it exceeded.
"""

from __future__ import annotations

import asyncio
import gc
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
import trio.testing

from gpu_admission import Lane, Rejected, current_lease
from gpu_admission.admission.lease import Handle
from gpu_admission.budget.ticket import Ticket
from gpu_admission.devices import FixedDevice
from gpu_admission.types import ASGIApp, Receive, Scope, Send
from tests.cases.clock import Clock
from tests.cases.harness import CAPACITY, Call, Scene, chunks, cost, read_body, settle

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

REQUESTS = 10_000
WAVE = 50


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """With a clock that moves when told."""
    options = {"clock": trio.testing.MockClock()} if request.param == "trio" else {"use_uvloop": False}
    return request.param, options


@asynccontextmanager
async def storm(app: ASGIApp, **settings: Any) -> AsyncIterator[Scene]:
    """A scene without a time limit, for time is not what it seems here. No task is left at its end."""
    before = _tasks()
    async with anyio.create_task_group() as group:
        scene = Scene(app, group, settings)
        yield scene
        await scene.check_end()
    await settle()
    assert _tasks() <= before


def _tasks() -> set[Any]:
    """Of asyncio; trio has none that nobody waits for."""
    return set(asyncio.all_tasks()) if asyncio._get_running_loop() is not None else set()


class Boom(Exception):
    """What the app raises."""


class Stormy(Call):
    """A call with a plan of its own: where it fails, and how it spends its turns."""

    def __init__(self, app: ASGIApp, dice: random.Random, **changes: Any) -> None:
        super().__init__(app, messages=chunks(b"1", complete=False), **changes)
        self.dice = random.Random(dice.random())
        self.raises_at = dice.choice([*range(7), *[99] * 14])
        if dice.random() < 0.2:
            self.send_fails_at = dice.randrange(5)
        self.point = 0
        self.kept: Handle | None = None
        self.fate = "left to itself"
        self._task: asyncio.Task[Any] | None = None

    async def turn(self) -> None:
        """The next point: a few turns of the loop, or the app's end."""
        for _ in range(self.dice.randrange(5)):
            await anyio.lowlevel.checkpoint()
        if self.point == self.raises_at:
            raise Boom
        self.point += 1

    async def run(self) -> None:
        self._task = asyncio.current_task() if asyncio._get_running_loop() else None
        try:
            await super().run()
        except asyncio.CancelledError:
            assert self._task is not None
            self._task.uncancel()

    def cancel(self) -> None:
        """Through its scope, or natively as asyncio's servers and ``wait_for`` do."""
        if self._task is None or self.dice.random() < 0.5:
            super().cancel()
        elif not self.ended:
            self._task.cancel()


async def stormy(scope: Scope, receive: Receive, send: Send) -> None:
    """Seven points: entered, read, resized, started, streaming, last chunk, afterwards."""
    call: Stormy = scope["call"]
    lease = call.lease = current_lease()
    assert lease is not None
    await call.turn()
    await read_body(receive)
    await call.turn()
    _play_with(lease, call)
    await call.turn()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await call.turn()
    for number in range(3):
        await send({"type": "http.response.body", "body": b"%d" % number, "more_body": True})
        await call.turn()
    await send({"type": "http.response.body", "body": b"", "more_body": False})
    await call.turn()


def _play_with(lease: Any, call: Stormy) -> None:
    match call.dice.randrange(8):
        case 0:
            lease.resize(call.dice.randrange(lease.bytes + 1))
        case 1:
            try:
                lease.resize(lease.bytes + call.dice.randrange(30))
            except Rejected:
                assert lease.bytes == lease.estimate.bytes
        case 2:
            lease.release()
        case 3:
            call.kept = lease.keep()


LAYOUTS: dict[str, dict[str, Any]] = {
    "one lane": {},
    "held until the last chunk": {"hold": "response", "max_running": 6},
    "lanes and flows": {
        "lanes": [Lane("a", guaranteed=0.3, max_waiting=4), Lane("b", limit=0.6, priority=1, timeout=2.0)],
        "lane": lambda info: info.headers["x-lane"],
        "flow": lambda info: info.headers["x-flow"],
    },
    "two devices": {
        "devices": [FixedDevice(CAPACITY, name="0"), FixedDevice(CAPACITY, name="1")],
        "placement": "best_fit",
    },
}


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_storm_leaves_nothing_behind(layout: str) -> None:
    dice = random.Random(layout)
    settings = {"timeout": 4.0, "max_waiting": 8, "max_bypass_wait": 1.0, **LAYOUTS[layout]}
    fates: Counter[str] = Counter()
    async with storm(stormy, **settings) as scene:
        clock = Clock()
        exceeded = _watch(scene)
        for _ in range(REQUESTS // len(LAYOUTS) // WAVE):
            calls = [_call(scene, dice) for _ in range(WAVE)]
            for call in calls:
                scene.group.start_soon(call.run)
            await _weather(scene, calls, clock, dice)
            await _calm(scene, calls, clock)
            fates.update(_fate(call) for call in calls)
            scene.calls.clear()
            assert not exceeded
        gc.collect()
    kinds = Counter(event.kind for event in scene.events)
    ends = Counter(event.lease for event in scene.events if event.kind == "released")
    assert kinds["admitted"] == kinds["released"] == len(ends)
    assert set(ends.values()) == {1}
    assert sum(fates.values()) == REQUESTS // len(LAYOUTS)
    assert min(fates[fate] for fate in FATES) >= 10, fates


def _watch(scene: Scene) -> list[str]:
    """Every grant and every growth is looked at as it is made; what goes over a limit is listed."""
    exceeded: list[str] = []
    admission, ledger = scene.admission, scene.admission.locked.ledger
    grant, change = ledger._grant, ledger.change

    def look(ticket: Ticket) -> None:
        account, lane = ledger.accounts[ticket.device], ledger.lanes[ticket.lane]
        if account.in_use > account.limit or lane.in_use > lane.limit:
            exceeded.append(f"{ticket}: {account.in_use} of {account.limit}")

    def granting(ticket: Ticket, device: int, now: float) -> None:
        grant(ticket, device, now)
        look(ticket)

    def changing(ticket: Ticket, size: int, now: float) -> Iterable[Ticket]:
        grows = size > ticket.bytes
        granted = change(ticket, size, now)
        if grows:
            look(ticket)
        return granted

    admission.events.observers = ()
    admission.observe(scene.events.append)
    vars(ledger).update(_grant=granting, change=changing)
    return exceeded


FATES = (
    "200",
    "413",
    "429",
    "cancelled in the line",
    "cancelled at work",
    "hung up in the line",
    "raised",
    "send failed",
)


def _call(scene: Scene, dice: random.Random) -> Stormy:
    headers = [
        (b"x-lane", dice.choice((b"a", b"b"))),
        (b"x-flow", dice.choice((b"1", b"2", b"3"))),
        (b"x-request-deadline", dice.choice((b"0", b"1.5", b"100", b"100"))),
    ]
    size = dice.choice((1, 5, 10, 30, 50, 50, 60, 101))
    call = Stormy(scene.app, dice, cost=size, headers=headers)
    scene.calls.append(call)
    return call


async def _weather(scene: Scene, calls: list[Stormy], clock: Clock, dice: random.Random) -> None:
    """What happens to them, in any order, a few turns apart."""
    steps: list[Callable[[], Any]] = []
    for call in calls:
        steps.append(partial(call.feed, *chunks(b"2")))
        steps += [call.hang_up] * (dice.random() < 0.3)
        steps += [call.cancel] * (dice.random() < 0.25)
    steps += [lambda: _at_work(calls, dice, Call.hang_up), lambda: _at_work(calls, dice, Stormy.cancel)] * 10
    steps += [lambda: clock.jump(dice.random() * 2)] * 8
    steps += [lambda: scene.admission.resize(dice.choice((60, 80, CAPACITY)))] * 4
    dice.shuffle(steps)
    for step in steps:
        step()
        for _ in range(dice.randrange(3)):
            await anyio.lowlevel.checkpoint()
        for call in calls:
            if call.kept is not None and dice.random() < 0.02:
                call.kept.close()


def _at_work(calls: list[Stormy], dice: random.Random, happens: Callable[[Any], None]) -> None:
    """To one that the app is busy with, where there is any."""
    busy = [call for call in calls if call.reached_app and not call.ended]
    if busy:
        happens(dice.choice(busy))


def _let_go(calls: list[Stormy]) -> None:
    for call in calls:
        if call.kept is not None:
            call.kept.close()


async def _calm(scene: Scene, calls: list[Stormy], clock: Clock) -> None:
    """The wave runs out; what was kept is let go, from a thread for a change."""
    scene.admission.resize(CAPACITY)
    for call in calls:
        while not call.ended:
            await clock.turn()
            clock.jump(1.0)
        call.check()
        assert call.error is None or isinstance(call.error, (OSError, Boom)), repr(call.error)
    await anyio.to_thread.run_sync(_let_go, calls)
    scene.check_rest()
    assert not scene.admission.locked.ledger.lanes[0]._flows


def _fate(call: Stormy) -> str:
    where = "at work" if call.reached_app else "in the line"
    if isinstance(call.error, Boom):
        return "raised"
    if isinstance(call.error, OSError):
        return "send failed"
    if call.starts:
        return str(call.status)
    return f"cancelled {where}" if not call.hung_up else f"hung up {where}"


# an engine that frees its memory later than the handler ends


class Engine:
    """Decodes all its sequences step by step, and frees one some steps after it was told to stop."""

    def __init__(self, wall: int) -> None:
        self.wall = wall
        self.used = 0
        self.most = 0
        self.over = 0
        self.sequences: list[Sequence] = []

    def submit(self, size: int, tokens: int, handle: Handle | None) -> Sequence:
        self.used += size
        self.most = max(self.most, self.used)
        self.over += self.used > self.wall
        sequence = Sequence(size, tokens, handle)
        self.sequences.append(sequence)
        return sequence

    def step(self) -> None:
        for sequence in list(self.sequences):
            sequence.left -= 1
            sequence.news.set()
            sequence.news = anyio.Event()
            if sequence.left <= 0:
                self._free(sequence)

    def _free(self, sequence: Sequence) -> None:
        self.sequences.remove(sequence)
        self.used -= sequence.size
        if sequence.handle is not None:
            sequence.handle.close()


class Sequence:
    def __init__(self, size: int, tokens: int, handle: Handle | None) -> None:
        self.size = size
        self.left = tokens
        self.handle = handle
        self.news = anyio.Event()

    def abort(self) -> None:
        """Nobody wants it any more; its cache is freed at the end of a later step."""
        self.left = min(self.left, 4)


def engine_app(engine: Engine, *, keeps: bool) -> ASGIApp:
    """Streams an engine's tokens; returns as soon as its client has hung up."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        lease = current_lease()
        assert lease is not None
        call: Stormy = scope["call"]
        call.lease = lease
        handle = lease.keep() if keeps else None
        sequence = engine.submit(lease.bytes, call.dice.randrange(3, 12), handle)
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while sequence.left > 0:
                await sequence.news.wait()
                await send({"type": "http.response.body", "body": b".", "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            sequence.abort()

    return app


async def _run_engine(keeps: bool, requests: int) -> Engine:
    dice = random.Random(20)
    engine = Engine(wall=CAPACITY)
    async with storm(engine_app(engine, keeps=keeps), estimator=cost, max_waiting=WAVE, timeout=1e6) as scene:
        for _ in range(requests // WAVE):
            calls = []
            for _ in range(WAVE):
                call = Stormy(scene.app, dice, cost=dice.choice((10, 20, 50)))
                call.send_fails_at = dice.randrange(1, 4) if dice.random() < 0.2 else -1
                call.feed(*chunks(b"2"))
                scene.calls.append(call)
                calls.append(call)
                scene.group.start_soon(call.run)
            while engine.sequences or not all(call.ended for call in calls):
                for _ in range(dice.randrange(1, 8)):
                    await anyio.lowlevel.checkpoint()
                engine.step()
            for call in calls:
                call.check()
            scene.calls.clear()
            scene.check_rest()
    assert engine.used == 0
    return engine


async def test_kept_leases_keep_an_engine_under_its_wall_though_a_fifth_of_its_clients_hang_up() -> None:
    engine = await _run_engine(keeps=True, requests=2000)
    assert engine.over == 0
    assert engine.most > 0.9 * CAPACITY


async def test_the_same_clients_drive_it_over_the_wall_where_nothing_is_kept() -> None:
    engine = await _run_engine(keeps=False, requests=500)
    assert engine.over > 0
