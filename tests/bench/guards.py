"""What two devices with every guard add to a request, over the same admission with none.

The difference is far below what a busy machine's speed varies by, so each round measures
both next to each other, and the ratios of the rounds are compared.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence

from gpu_admission import GPUAdmission
from gpu_admission.devices import FixedDevice
from gpu_admission.estimators import Constant, Linear
from gpu_admission.guards import FaultGuard, MemoryGuard, OutOfMemoryGuard, ThermalGuard
from gpu_admission.settings import EstimatorSetting
from gpu_admission.types import Guard
from tests.bench.asgi import echo
from tests.bench.contenders import Nothing
from tests.bench.overhead import requests
from tests.bench.sidebyside import Measure, table

ROUNDS = 101


def served(estimator: EstimatorSetting, devices: int, guards: Sequence[Guard]) -> GPUAdmission:
    """The same budget on each; with devices, the readings thread is at work."""
    several = [FixedDevice("20GiB", name=str(number)) for number in range(devices)]
    return GPUAdmission(echo, capacity="20GiB", estimator=estimator, devices=several, guards=guards)


def all_guards() -> Sequence[Guard]:
    return MemoryGuard(), OutOfMemoryGuard(), FaultGuard(), ThermalGuard()


def compare(without: Measure, others: Sequence[Measure], nothing: Measure) -> list[tuple[float, float]]:
    """Of each of ``others``: microseconds over a middleware that does nothing, and ratio to ``without``."""
    added: list[list[float]] = [[] for _ in (without, *others)]
    for _ in range(ROUNDS):
        least = nothing()
        for number, measure in enumerate((without, *others)):
            added[number].append(measure() - least)
    pairs = [list(zip(added[0], each, strict=True)) for each in added]
    return [
        (statistics.median(with_ for _, with_ in each) * 1e6, statistics.median(b / a for a, b in each) - 1)
        for each in pairs
    ]


TOLD = ("no device", "two devices, no guard", "two devices, all guards")


def run() -> str:
    tokens = Linear({"prompt_tokens": "128KiB", "new_tokens": "128KiB"}, constant="40MiB")
    estimators: dict[str, EstimatorSetting] = {"Constant": Constant("1GiB"), "chat": tokens}
    rows = []
    with asyncio.Runner() as runner:
        nothing = requests(runner, (Nothing(echo), {}), count=100)
        for name, estimator in estimators.items():
            apps = [served(estimator, 0, ()), served(estimator, 2, ()), served(estimator, 2, all_guards())]
            without, *others = [requests(runner, (app, {}), count=100) for app in apps]
            found = compare(without, others, nothing)
            for what, (added, more) in zip(TOLD, found, strict=True):
                rows.append([f"{name}, {what}", f"{added:.1f}", f"{more:+.1%}"])
            for app in apps:
                runner.run(app.admission.aclose())
    return table("Devices and guards", ["GPUAdmission", "µs added", "over no device"], rows)
