"""Devices that fail, fill up and get hot under requests that end in every way: nothing is left behind."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from gpu_admission import current_lease
from gpu_admission.guards import MemoryGuard, OutOfMemoryGuard, ThermalGuard
from gpu_admission.types import Receive, Scope, Send
from tests.cards import Card, HandClock, look
from tests.cases.harness import Call, Scene, answer, read_body, saying, scenario, settle

pytestmark = pytest.mark.anyio
WAVES, CALLS = 12, 12


async def fated(scope: Scope, receive: Receive, send: Send) -> None:
    """Fills its device, works until it may finish, and ends as it must."""
    call: Call = scope["call"]
    call.lease = lease = current_lease()
    assert lease is not None
    card: Card = scope["test.cards"][lease.device_index]
    size = lease.bytes
    card.filled += size
    try:
        call.read = await read_body(receive)
        call.started.set()
        await call.may_finish.wait()
        fate: Any = scope["test.fate"]
        if isinstance(fate, Exception):
            raise fate
        await answer(send, b"done", status=fate)
    finally:
        card.filled -= size


def fates(dice: random.Random) -> Any:
    out_of_memory = RuntimeError("CUDA out of memory. Tried to allocate 1 GiB")
    return dice.choice([200, 200, 200, 400, 500, LookupError(), out_of_memory])


async def weather(scene: Scene, cards: list[Card], clock: HandClock, dice: random.Random) -> None:
    """Others come and go, the room gets hot and cool, drivers fail, and time passes."""
    heat = dice.choice([30.0, 83.0, 91.0])
    for card in cards:
        card.foreign = dice.choice([0, 0, 40, 90])
        card.total = dice.choice([200, 200, 200, None])
        card.facts["temperature"] = heat
    clock.pass_(dice.choice([0.0, 0.5, 5.0, 40.0]))
    look(scene.admission)
    await anyio.lowlevel.checkpoint()


async def wave(scene: Scene, cards: list[Card], clock: HandClock, dice: random.Random) -> list[Call]:
    calls = [
        scene.call(cost=dice.randint(1, 120), **saying(fate=fates(dice), cards=cards)) for _ in range(CALLS)
    ]
    for call in calls:
        scene.group.start_soon(call.run)
    await settle()
    await weather(scene, cards, clock, dice)
    for call in dice.sample(calls, CALLS):
        dice.choice([call.finish, call.finish, call.finish, call.hang_up, call.cancel])()
        if dice.random() < 0.3:
            await weather(scene, cards, clock, dice)
    for call in calls:
        call.finish()
    return calls


async def clear_up(scene: Scene, cards: list[Card], clock: HandClock) -> None:
    """All is well again, and long enough that the breakers try the devices out."""
    for card in cards:
        card.total, card.foreign = 200, 0
        card.facts["temperature"] = 30.0
    for _ in range(4):
        clock.pass_(500)
        look(scene.admission, 2)
        await settle()


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
async def test_whatever_happens_to_devices_and_requests_all_comes_back(by_hand: HandClock, seed: int) -> None:
    dice = random.Random(seed)
    cards = [Card(by_hand, 200, name=name) for name in "ab"]
    guards = [MemoryGuard(stale_after=20), OutOfMemoryGuard(cool_down=30, opens_after=2), ThermalGuard()]
    ends: Counter[str] = Counter()
    async with scenario(fated, capacity=100, devices=cards, guards=guards, max_waiting=6) as scene:
        for _ in range(WAVES):
            calls = await wave(scene, cards, by_hand, dice)
            await clear_up(scene, cards, by_hand)
            for call in calls:
                with anyio.fail_after(10):  # a thread may be on its way
                    await call.done.wait()
                assert call.ended
                ends[str(call.status) if call.starts else "no answer"] += 1
                call.check()
            scene.check_rest()
            assert [card.filled for card in cards] == [0, 0]
            # One good request on each closes what is half-open; then all of it comes back.
            for trial in [await scene.start(cost=1, **saying(fate=200, cards=cards)) for _ in cards]:
                trial.finish()
            await clear_up(scene, cards, by_hand)
            assert scene.admission.snapshot().available == 100
            scene.calls.clear()
    assert {"200", "400", "413", "429", "500", "503", "no answer"} <= ends.keys(), ends
