"""A comparison of disciplines: one table, and one small plot of text.

Owns words, columns and blocks. What the figures mean is said in ``figures``.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterator, Sequence

from gpu_admission.planning.cases import Row
from gpu_admission.planning.figures import SOON, Figures
from gpu_admission.planning.terminal import Table

_BLOCKS = " ▁▂▃▄▅▆▇█"
_ASCII = " .:-=+*%#"
_WIDTH = 48
_FIRST = 0.1

_COLUMNS: tuple[tuple[str, str, Callable[[Figures], float], str], ...] = (
    ("completed", "", lambda row: row.completed, "{:.1f} %"),
    (f"within {SOON:g} s", "started", lambda row: row.soon, "{:.1f} %"),
    ("tenth done", "largest", lambda row: row.largest, "{:.1f} %"),
    ("p99 wait", "small half", lambda row: row.small_wait, "{:.1f} s"),
    ("memory", "out of", lambda row: row.out_of_memory, "{:.1f} ‰"),
    ("used", "bytes", lambda row: row.used, "{:.0f} %"),
    ("off by", "forecast", lambda row: row.forecast_error, "{:.1f} s"),
)
"""Of each column: the second and the first line of its head, its figure, and how it is written."""


def table(rows: Sequence[Row]) -> Table:
    """A row for each that was played."""
    heads = [f"{above}\n{below}" for below, above, _, _ in _COLUMNS]
    cells = [[row.name, *(_cell(row.figures, read, form) for _, _, read, form in _COLUMNS)] for row in rows]
    return Table(["", *heads], cells)


def _cell(figures: Figures, read: Callable[[Figures], float], form: str) -> str:
    value = read(figures)
    return "-" if math.isnan(value) else form.format(value)


def plot(rows: Sequence[Row], longest: float, *, blocks: str = _BLOCKS) -> Iterator[str]:
    """The share of requests that had started, by the seconds they had waited (logarithmic)."""
    width = max(len(row.name) for row in rows)
    ratio = max(longest, 2 * _FIRST) / _FIRST
    times = [_FIRST * ratio ** (step / (_WIDTH - 1)) for step in range(_WIDTH)]
    yield f"{'started within':{width}}  {_axis(times)}"
    for row in rows:
        waits = row.figures.waits
        asked = row.figures.requests
        shares = [bisect.bisect_right(waits, time) / asked for time in times]
        bars = "".join(blocks[round(share * (len(blocks) - 1))] for share in shares)
        yield f"{row.name:{width}}  {bars}"


def _axis(times: Sequence[float]) -> str:
    marks = [" "] * (_WIDTH + 6)
    for second in (_FIRST, 1, 10, 60, 600):
        at = bisect.bisect_left(times, second * 0.999)
        if at < len(times):
            text = f"{second:g} s"
            marks[at : at + len(text)] = text
    return "".join(marks).rstrip()


def blocks_for(encoding: str | None) -> str:
    """What a terminal of ``encoding`` can show."""
    try:
        _BLOCKS.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return _ASCII
    return _BLOCKS
