"""The order of things: measure costs once, then the same replay against each setup in turn.

Owns the division of the time. Each replay has a fresh server process; what differs between
them is in ``setups`` and nowhere else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from gpu_admission.demo import workers
from gpu_admission.demo.calibrate import COMPANY, Costs, calibrate
from gpu_admission.demo.figures import Trial
from gpu_admission.demo.load import Answer, Run, connect, replay
from gpu_admission.demo.plan import Plan, Role
from gpu_admission.demo.protect import Unprotected
from gpu_admission.demo.report import Report
from gpu_admission.demo.server import Ready, serve
from gpu_admission.demo.setups import PAGE, Facts, Setup, setups
from gpu_admission.demo.trace import Ask
from gpu_admission.demo.trace import load as load_trace
from gpu_admission.sizes import format_bytes

START = 8.0
"""Seconds that are set aside for a server to load and warm up."""
LEAST = 6.0
"""Seconds of load that a replay gets when time is short."""

Say = Callable[[str], None]
Watch = Callable[[str, int], Callable[[Answer], None]]


def run(plan: Plan, say: Say, watch: Watch) -> Report:
    """All rounds of ``plan``. Raises ``ValueError`` when the wall leaves no room, ``ServerError``.

    ``say`` gets a line at each stage; ``watch(label, requests)`` is asked for a callback for
    the answers of each replay.
    """
    deadline = time.monotonic() + plan.limit
    asks = load_trace(plan.requests)
    ready, costs = _measured(plan, say)
    paged = _measured(plan, say, PAGE)[1].rounded_up(PAGE) if "learned" in plan.rounds else costs
    if costs.shared + costs.of(Ask(1, 1)) > plan.room:
        raise ValueError(
            f"--wall {format_bytes(plan.room)} is too small: a pass alone takes {format_bytes(costs.shared)}"
        )
    say(_costs(costs, asks))
    trials: dict[Role, Trial] = {}
    with TemporaryDirectory(prefix="gpu-admission-demo-", dir=_in_memory()) as folder:
        facts = Facts(
            room=plan.room, costs=costs, paged=paged, asks=asks, workers=plan.workers, folder=folder
        )
        for setup in setups(plan.rounds, facts):
            seconds = _share(deadline, plan.replays - len(trials))
            say(f"{setup.label}: a new server loads and warms up ...")
            trials[setup.role] = trial = _replay(plan, setup, asks, seconds, watch)
            # The trace's requests grow longer: where time ran out, the next one gets the same ones.
            asks = asks[: len(trial.run.answers)]
    return _report(plan, ready, trials)


def _measured(plan: Plan, say: Say, page: int = 0) -> tuple[Ready, Costs]:
    async def measure(port: int) -> Costs:
        async with connect(port, COMPANY) as http:
            return await calibrate(http, plan.engine, say)

    pages = f", in pages of {page} tokens," if page else ""
    say(f"measuring what requests take{pages} on a server that loads and warms up ...")
    with serve(plan.settings(Unprotected(), page=page)) as ready:
        return ready, asyncio.run(measure(ready.port))


def _replay(plan: Plan, setup: Setup, asks: Sequence[Ask], seconds: float, watch: Watch) -> Trial:
    sent = setup.asks(asks)

    async def load(port: int, engine: int) -> Run:
        progress = watch(setup.label, len(sent))
        async with connect(port, plan.clients) as http, connect(engine, 1) as behind:
            return await replay(
                http, sent, clients=plan.clients, seconds=seconds, progress=progress, engine=behind
            )

    with _serving(plan, setup) as (port, engine):
        return Trial(setup.label, asyncio.run(load(port, engine)), plan.room)


@contextmanager
def _serving(plan: Plan, setup: Setup) -> Iterator[tuple[int, int]]:
    """The port that answers, and that of the engine's process, which may be the same."""
    if not setup.workers:
        with serve(plan.settings(setup.protection, plan.room, setup.page)) as ready:
            yield ready.port, ready.port
        return
    with serve(plan.settings(Unprotected(), plan.room, setup.page)) as ready:
        front = workers.Settings(count=setup.workers, engine=ready.port, protection=setup.protection)
        with workers.serve(front) as port:
            yield port, ready.port


def _share(deadline: float, replays: int) -> float:
    """Seconds of load for the next of ``replays`` that are left."""
    return max(LEAST, (deadline - time.monotonic()) / replays - START)


def _in_memory() -> str | None:
    """Where a folder of several processes belongs, if there is such a place."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _report(plan: Plan, ready: Ready, trials: Mapping[Role, Trial]) -> Report:
    return Report(
        engine=plan.engine,
        clients=plan.clients,
        room=plan.room,
        weights=plan.shape.weights * 4,
        cache_level=last_level_cache() if ready.device == "cpu" else None,
        device=ready.device,
        wall=ready.wall,
        trials=trials,
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
