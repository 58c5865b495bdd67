"""What is replayed: requests in the order of their arrival, read from a trace or a decision log.

Owns the two file formats, and nothing about how requests are served: the ``Decoder`` for which a CSV
of tokens is read turns it into bytes and seconds.
"""

from __future__ import annotations

import csv
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path

import msgspec

from gpu_admission.observe.decisions import Decision
from gpu_admission.planning.service import Card, Decoder

COLUMNS = ["arrival_s", "input_tokens", "output_tokens"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One column a fact, one row a request."""

    arrivals: list[float]
    """Seconds from the first."""
    sizes: list[int]
    """Bytes that each is charged."""
    seconds: list[float]
    """Seconds that each takes when it is alone."""
    torn: bool = False
    """Whether the file ended in the middle of a line, which is left out."""

    def __len__(self) -> int:
        return len(self.arrivals)

    def at_most(self, size: int) -> Trace:
        """Without those that are larger than ``size`` bytes."""
        keep = [index for index, asked in enumerate(self.sizes) if asked <= size]
        return replace(
            self,
            arrivals=[self.arrivals[i] for i in keep],
            sizes=[self.sizes[i] for i in keep],
            seconds=[self.seconds[i] for i in keep],
        )

    def load(self, card: Card) -> float:
        """Byte-seconds asked for, over those that a full ``card`` can give in the same time."""
        asked = sum(size * seconds for size, seconds in zip(self.sizes, self.seconds, strict=True))
        span = self.arrivals[-1] - self.arrivals[0]
        return asked * card.slowdown(card.capacity) / (card.capacity * span) if span > 0 else float("inf")

    def stretched(self, factor: float) -> Trace:
        """The same requests with ``factor`` times the time between them."""
        return replace(self, arrivals=[arrival * factor for arrival in self.arrivals])

    def repeated(self, count: int) -> Trace:
        """The trace repeated so many times, at the same rate."""
        step = self.arrivals[-1] * len(self) / max(1, len(self) - 1)
        return replace(
            self,
            arrivals=[turn * step + arrival for turn in range(count) for arrival in self.arrivals],
            sizes=self.sizes * count,
            seconds=self.seconds * count,
        )


def read(path: Path, decoder: Decoder) -> Trace:
    """The requests in ``path``: ``.jsonl`` is a decision log, everything else a CSV of tokens.

    Raises ``OSError``, and ``ValueError`` with the line that can't be read.
    """
    torn = False
    with path.open(newline="") as lines:
        if path.suffix == ".jsonl":
            decisions, torn = _decoded(lines)
            rows: Iterable[tuple[float, int, float]] = _decisions(decisions)
        else:
            rows = _tokens(lines, decoder)
        found = sorted(rows, key=itemgetter(0))
    if not found:
        raise ValueError(f"{path} holds no request")
    first = found[0][0]
    return Trace(
        arrivals=[arrival - first for arrival, _, _ in found],
        sizes=[size for _, size, _ in found],
        seconds=[seconds for _, _, seconds in found],
        torn=torn,
    )


def read_tokens(path: Path) -> list[tuple[float, int, int]]:
    """(seconds, prompt tokens, new tokens) of each request of a CSV, in the order of their arrival.

    Raises ``OSError``, and ``ValueError`` with the line that can't be read.
    """
    with path.open(newline="") as lines:
        found = sorted(_rows(lines), key=itemgetter(0))
    if not found:
        raise ValueError(f"{path} holds no request")
    return [(arrival - found[0][0], inputs, outputs) for arrival, inputs, outputs in found]


def _tokens(lines: Iterable[str], decoder: Decoder) -> Iterator[tuple[float, int, float]]:
    for arrival, inputs, outputs in _rows(lines):
        yield arrival, decoder.size(inputs, outputs), decoder.seconds(inputs, outputs)


def _rows(lines: Iterable[str]) -> Iterator[tuple[float, int, int]]:
    """From ``arrival_s,input_tokens,output_tokens``; further columns are left alone."""
    rows = csv.reader(lines)
    header = next(rows, [])
    if header[:3] != COLUMNS:
        raise ValueError(f"line 1: the first columns of a trace are {','.join(COLUMNS)}")
    for number, row in enumerate(rows, start=2):
        try:
            arrival, inputs, outputs = float(row[0]), int(row[1]), int(row[2])
        except (ValueError, IndexError):
            raise ValueError(f"line {number}: not a time and two counts of tokens: {row}") from None
        if arrival < 0 or inputs < 0 or outputs < 0 or not inputs + outputs:
            raise ValueError(f"line {number}: a time and tokens are positive: {row}")
        yield arrival, inputs, outputs


def _decoded(lines: Iterable[str]) -> tuple[list[Decision], bool]:
    """The lines of a ``DecisionLog``; a last one that a killed process left unfinished is left out."""
    decode = msgspec.json.Decoder(Decision).decode
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(decode(line))
        except msgspec.MsgspecError as error:
            if not line.endswith("\n"):
                return found, True
            raise ValueError(f"line {number}: not a decision: {error}") from None
    return found, False


def _decisions(found: Sequence[Decision]) -> Iterator[tuple[float, int, float]]:
    """Fill in facts that a request never had with the median of its lane.

    A refused request has held nothing, and one refused before its body was read has no estimate.
    """
    sizes = _usual((each.lane, each.bytes) for each in found)
    holds = _usual((each.lane, each.held) for each in found)
    for each in found:
        size = each.bytes or int(sizes[each.lane])
        if size:
            yield each.arrival, size, each.held or holds[each.lane]


def _usual(facts: Iterable[tuple[str, float]]) -> defaultdict[str, float]:
    """The median of the facts that are not 0, for each lane; 0 if there is none."""
    known: defaultdict[str, list[float]] = defaultdict(list)
    for lane, value in facts:
        if value:
            known[lane].append(value)
    return defaultdict(float, {lane: statistics.median(values) for lane, values in known.items()})
