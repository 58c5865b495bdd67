"""Adds up what processes say that they worked on, and trusts nothing else. No test lives here.

Each process writes a line when work on some bytes begins, and another just before it gives them
back. So what is added up here is never more than what was really in use at the time: if that is
above the limit, too much was admitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple


class Work(NamedTuple):
    """``size`` bytes that were in use from ``begin`` to ``end``, in seconds of the host's clock."""

    worker: int
    name: str
    size: int
    begin: float
    end: float


class Peak(NamedTuple):
    """The most bytes that were in use at once, when, and by what."""

    bytes: int
    at: float
    works: tuple[Work, ...]


class FalseReport(Exception):
    """A report that can't be true: the worker is broken, and nothing can be said of the budget."""


@dataclass
class Audit:
    """The reports in ``folder``, and what was done to those who wrote them."""

    folder: Path
    killed_at: dict[int, float] = field(default_factory=dict)
    """The moment before a worker was killed. Others may hear of its death before its parent does."""
    stood_still: list[tuple[int, float, float]] = field(default_factory=list)
    """A worker, when it was stopped, and until when at least nobody could be given its bytes.

    The one exception that the design makes: work that runs when its process is declared dead.
    """

    def works(self) -> list[Work]:
        """All work, that of the killed up to the kill, or to their last line if that came later."""
        return [work for path in sorted(self.folder.glob("*.txt")) for work in self._works_of(path)]

    def _works_of(self, path: Path) -> Iterator[Work]:
        worker, last = int(path.stem), 0.0
        begun: dict[str, tuple[float, int]] = {}
        for line in path.read_text().splitlines():
            sign, at, size, name = line.split()
            last = float(at)
            if sign == "+" and name not in begun:
                begun[name] = (last, int(size))
            elif sign == "-" and begun.get(name, (0.0, -1))[1] == int(size):
                yield self._counted(Work(worker, name, int(size), begun.pop(name)[0], last))
            else:
                raise FalseReport(f"{path.name}: {line}")
        if begun and worker not in self.killed_at:
            raise FalseReport(f"{path.name}: {begun} never ended, and nobody killed it")
        for name, (at_first, taken) in begun.items():
            end = max(last, self.killed_at[worker])
            yield self._counted(Work(worker, name, taken, at_first, end))

    def _counted(self, work: Work) -> Work:
        for worker, stopped, until in self.stood_still:
            if worker == work.worker and work.begin <= stopped and work.end > until:
                return work._replace(end=until)
        return work

    def peak(self) -> Peak:
        """The most that was in use at any time."""
        return peak_of(self.works())


def peak_of(works: Iterable[Work]) -> Peak:
    """What ends in the very moment in which something else begins isn't counted with it."""
    changes = [(work.begin, 1, work) for work in works]
    changes += [(work.end, 0, work) for _, _, work in changes]
    now: dict[str, Work] = {}
    most = Peak(0, 0.0, ())
    for at, begins, work in sorted(changes):
        if begins:
            now[work.name] = work
        else:
            now.pop(work.name, None)
        held = sum(each.size for each in now.values())
        if held > most.bytes:
            most = Peak(held, at, tuple(now.values()))
    return most
