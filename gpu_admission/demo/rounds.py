"""The order of things: measure costs once, then the same replay against each protection in turn.

Owns the division of the time. Each round has a fresh server process, and differs from the
others in its ``protection`` and in nothing else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from gpu_admission.demo.calibrate import COMPANY, Costs, calibrate
from gpu_admission.demo.figures import Trial, first_error
from gpu_admission.demo.load import Answer, Run, connect, replay
from gpu_admission.demo.protect import Protection, Unprotected
from gpu_admission.demo.report import Report
from gpu_admission.demo.server import EngineName, Ready, ServerProcess, Settings
from gpu_admission.demo.shape import Shape
from gpu_admission.demo.trace import Ask
from gpu_admission.demo.trace import load as load_trace
from gpu_admission.sizes import format_bytes

START = 8.0
"""Seconds that are set aside for a server to load and warm up."""
LEAST = 6.0
"""Seconds of load that a round gets when time is short."""

Say = Callable[[str], None]
Watch = Callable[[str, int], Callable[[Answer], None]]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What the command was asked to do. ``seconds`` bound the whole."""

    requests: int = 160
    clients: int = 48
    room: int = 36 * 2**20
    engine: EngineName = "batch"
    seconds: float = 165.0
    shape: Shape = Shape()

    def settings(self, protection: Protection, room: int | None = None) -> Settings:
        return Settings(
            engine=self.engine,
            protection=protection,
            room=room or Settings().room,
            most=self.clients,
            shape=self.shape,
        )


def run(plan: Plan, say: Say, watch: Watch) -> Report:
    """All rounds of ``plan``. Raises ``ValueError`` when the wall leaves no room, ``ServerError``.

    ``say`` gets a line at each stage; ``watch(label, requests)`` is asked for a callback for
    the answers of each round.
    """
    deadline = time.monotonic() + plan.seconds
    asks = load_trace(plan.requests)
    say("measuring what requests take: the server loads and warms up ...")
    ready, costs = _measured(plan, say)
    if costs.shared + costs.of(Ask(1, 1)) > plan.room:
        raise ValueError(
            f"--wall {format_bytes(plan.room)} is too small: a pass alone takes {format_bytes(costs.shared)}"
        )
    say(_costs(costs, asks))
    slots = costs.slots(plan.room, asks)
    protections = (
        ("unprotected", Unprotected()),
        (f"Semaphore({slots.count})", slots),
        ("GPUAdmission", costs.budget(plan.room)),
    )
    trials: list[Trial] = []
    for label, protection in protections:
        seconds = _share(deadline, len(protections) - len(trials))
        say(f"{label}: a new server loads and warms up ...")
        trials.append(_round(plan, label, protection, asks, seconds, watch))
        # The trace's requests grow longer: where time ran out, the next one gets the same ones.
        asks = asks[: len(trials[-1].run.answers)]
    return _report(plan, ready, trials)


def _measured(plan: Plan, say: Say) -> tuple[Ready, Costs]:
    async def measure(port: int) -> Costs:
        async with connect(port, COMPANY) as http:
            return await calibrate(http, plan.engine, say)

    with ServerProcess(plan.settings(Unprotected())) as ready:
        costs = asyncio.run(measure(ready.port))
    return ready, costs


def _round(
    plan: Plan,
    label: str,
    protection: Protection,
    asks: Sequence[Ask],
    seconds: float,
    watch: Watch,
) -> Trial:
    async def load(port: int) -> Run:
        progress = watch(label, len(asks))
        async with connect(port, plan.clients) as http:
            return await replay(http, asks, clients=plan.clients, seconds=seconds, progress=progress)

    with ServerProcess(plan.settings(protection, plan.room)) as ready:
        return Trial(label, asyncio.run(load(ready.port)), plan.room)


def _share(deadline: float, rounds: int) -> float:
    """Seconds of load for the next of ``rounds`` that are left."""
    return max(LEAST, (deadline - time.monotonic()) / rounds - START)


def _report(plan: Plan, ready: Ready, trials: Sequence[Trial]) -> Report:
    plain, slots, ours = trials
    return Report(
        engine=plan.engine,
        clients=plan.clients,
        room=plan.room,
        weights=plan.shape.weights * 4,
        cache_level=last_level_cache() if ready.device == "cpu" else None,
        device=ready.device,
        wall=ready.wall,
        trials=(plain, slots, ours),
        error=first_error(plain.run.answers),
    )


def _costs(costs: Costs, asks: Sequence[Ask]) -> str:
    each = sorted(map(costs.of, asks))
    middle, largest = format_bytes(each[len(each) // 2]), format_bytes(each[-1])
    shared = format_bytes(costs.shared)
    return f"measured: a request takes {middle} (median) to {largest} (largest); a pass {shared} beside them"


def last_level_cache(folder: str = "/sys/devices/system/cpu/cpu0/cache") -> int | None:
    """Bytes of the largest cache of the first core (Linux), or ``None`` where that is not told."""
    sizes = [path.read_text().strip() for path in Path(folder).glob("index*/size")]
    return max((int(size[:-1]) * 1024 for size in sizes if size.endswith("K")), default=None)
