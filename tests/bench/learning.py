"""What learning from answers brings on traces: requests completed, beside the estimate that learns nothing.

Real lengths, real ledger, simulated time: a request holds its cache for as long as it takes, whoever runs
beside it, and waits at most as long and as many as the settings' defaults say. Clients ask (a) for 4,096
tokens whatever they use, (b) for 2 to 16 times what they use. "All known" charges what is used, exactly.
``python -m tests.bench.learning FOLDER`` plays every trace in it.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_admission.estimators import Learned
from gpu_admission.estimators.taken import Followed
from gpu_admission.planning.disciplines import Setup
from gpu_admission.planning.replay import Replay
from gpu_admission.planning.service import Card, Decoder
from gpu_admission.planning.trace import Trace, read_tokens
from gpu_admission.request import RequestInfo
from gpu_admission.types import Estimate, Usage, Workload

LOAD = 1.5
_ROUTE = "/v1/chat/completions m"

Asks = Callable[[int, random.Random], int]
CLIENTS: Mapping[str, Asks] = {
    "(a) 4,096": lambda used, draw: max(4096, used),
    "(b) 2-16 x": lambda used, draw: int(used * 2 ** draw.uniform(1, 4)),
}


class Formula:
    """The decoder's own."""

    def __init__(self, decoder: Decoder) -> None:
        self._size = decoder.size

    def __call__(self, info: RequestInfo, /) -> Estimate:
        return self.estimate(info.workload)

    def estimate(self, workload: Workload) -> Estimate:
        return Estimate(self._size(workload.prompt_tokens, workload.new_tokens))


@dataclass(frozen=True, slots=True)
class Cell:
    """One trace with one kind of clients: what was completed, and what ran out of memory."""

    name: str
    clients: str
    requests: int
    plain: int
    learned: int
    known: int
    out_of_memory: int
    charged: float
    """Over used, by bytes, with learning; of the second half."""

    @property
    def ratio(self) -> float:
        return self.learned / max(1, self.plain)


CACHE = Decoder(prefill_bytes_per_token=0)
"""Llama-3.1-8B on 24 GiB, by its cache alone: what an engine with a pool meters."""


def play(
    name: str,
    tokens: Sequence[tuple[float, int, int]],
    clients: str,
    *,
    decoder: Decoder = CACHE,
    drag: float = 0.0,
    seed: int = 1,
) -> Cell:
    card, draw = Card(decoder.card.capacity, drag), random.Random(seed)
    rows = [row for row in tokens if decoder.size(row[1], row[2]) <= card.capacity]
    asked = [Workload(prompt_tokens=i, new_tokens=CLIENTS[clients](o, draw)) for _, i, o in rows]
    trace = Trace(
        arrivals=[arrival - rows[0][0] for arrival, _, _ in rows],
        sizes=[decoder.size(i, o) for _, i, o in rows],
        seconds=[decoder.seconds(i, o) for _, i, o in rows],
    )
    trace = trace.stretched(trace.load(card) / LOAD)
    formula = Formula(decoder)
    estimator = Learned(formula, usage=True)
    followed: dict[int, Followed] = {}

    def plain(index: int) -> int:
        return formula.estimate(asked[index]).bytes

    def learned(index: int) -> int:
        estimate = estimator.estimate(asked[index], route=_ROUTE)
        followed[index] = Followed(_ROUTE, estimate, asked[index], rows[index][1])
        return estimate.bytes

    def ended(index: int, ran_out: bool) -> None:
        usage = Usage(rows[index][1], rows[index][2])
        estimator.ended(followed[index], "oom" if ran_out else "ok", peak=None, usage=usage, pieces=1)

    def run(charge: Callable[[int], int], ended: Callable[[int, bool], object] | None) -> tuple[int, int]:
        setup = Setup(capacity=card.capacity)
        replay = Replay(trace, setup.ledger(), card, patience=setup.timeout, charge=charge, ended=ended)
        replayed = replay.run()
        return sum(replayed.done), replayed.out_of_memory

    before, _ = run(plain, None)
    known, _ = run(trace.sizes.__getitem__, None)
    after, lost = run(learned, ended)
    half = len(rows) // 2
    last = sum(each.estimate.bytes for index, each in followed.items() if index >= half)
    charged = last / sum(trace.sizes[half:])
    return Cell(name, clients, len(rows), before, after, known, lost, charged)


def cells(folder: Path) -> list[Cell]:
    """Every trace of a folder with every kind of clients."""
    files = sorted(folder.glob("*.csv"))
    return [play(file.stem, read_tokens(file), clients) for file in files for clients in CLIENTS]


def table(found: Sequence[Cell]) -> str:
    head = (
        "trace",
        "clients ask",
        "requests",
        "plain",
        "learned",
        "ratio",
        "all known",
        "out of memory",
        "charged / used",
    )
    lines = [
        (
            *(cell.name, cell.clients, f"{cell.requests:,}", f"{cell.plain:,}", f"{cell.learned:,}"),
            *(f"{cell.ratio:.2f}", f"{cell.known / cell.plain:.2f}"),
            *(f"{1000 * cell.out_of_memory / cell.requests:.2f} in 1,000", f"{cell.charged:.2f}"),
        )
        for cell in found
    ]
    mean = statistics.fmean(cell.ratio for cell in found)
    text = "\n".join("| " + " | ".join(row) + " |" for row in (head, ("---",) * len(head), *lines))
    return f"{text}\n\nmean ratio {mean:.3f}, least {min(cell.ratio for cell in found):.3f}"


if __name__ == "__main__":
    print(table(cells(Path(sys.argv[1]))))
