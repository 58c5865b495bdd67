"""What the demo says at its end, as text: the table, the plot, and what follows from them.

Every sentence of the verdict is chosen by the figures alone, whoever they favour.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from gpu_admission.demo.figures import Figures, Trial, first_error
from gpu_admission.demo.plan import Role
from gpu_admission.demo.trace import NEW_SCALE, PROMPT_SCALE, SOURCE
from gpu_admission.planning.terminal import Table, Terminal
from gpu_admission.sizes import format_bytes

EQUAL = 1.1
"""Two rates that differ by less than this factor are called equal."""
LEARNT = 40
"""Answers after which a budget that was told nothing is judged."""
COMPARED: tuple[tuple[Role, Role], ...] = (
    ("bytes", "semaphore"),
    ("auto", "semaphore"),
    ("one budget", "divided"),
    ("learning", "asked"),
    ("learned", "asked"),
)
_BLOCKS = " ▁▂▃▄▅▆▇█"
_WIDTH = 60


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is shown."""

    engine: str
    clients: int
    room: int
    """Room below the wall, in bytes."""
    weights: int
    cache_level: int | None
    """Bytes of the last-level cache, where known."""
    device: str
    wall: str
    trials: Mapping[Role, Trial]
    """In the order in which they were run."""

    @property
    def rows(self) -> dict[Role, Figures]:
        return {role: trial.figures for role, trial in self.trials.items()}


HEADINGS = (
    "",
    "ok",
    "out of memory",
    "refused",
    "failed",
    "unfinished",
    "requests/s",
    "per CPU s",
    "p50 s",
    "p95 s",
    "peak use",
    "mean use",
)


def cells(row: Figures) -> tuple[str, ...]:
    """One line of the table, as text, in the order of ``HEADINGS``."""
    return (
        row.label,
        f"{row.count('ok')} of {row.sent}",
        str(row.count("out_of_memory")),
        str(row.count("refused")),
        str(row.count("failed")),
        str(row.count("unfinished")),
        f"{row.per_second:.2f}",
        f"{row.per_cpu_second:.2f}",
        _seconds(row.p50),
        _seconds(row.p95),
        f"{row.peak:.0%}",
        f"{row.mean:.0%}",
    )


def show(report: Report, out: Terminal) -> None:
    """The whole report, on a terminal or in plain lines."""
    for line in setting(report):
        out.line(line)
    out.line()
    out.table(Table(HEADINGS, [cells(row) for row in report.rows.values()]))
    out.line()
    for line in _plot(list(report.trials.values())):
        out.line(line, style="red" if set(line) <= set(" x|") else "")
    out.line()
    for line in verdict(report):
        out.line(line)


def setting(report: Report) -> Iterator[str]:
    """What was run, in sentences."""
    cache = report.cache_level
    times = f", {report.weights / cache:.1f} x the last-level cache" if cache else ""
    yield (
        f"A decoder with {format_bytes(report.weights)} of float32 weights on {report.device}{times}; "
        f"beside them at most {format_bytes(report.room)} ({report.wall})."
    )
    yield (
        f"{report.clients} clients, each sending its next request when the last was answered. "
        f"Lengths and order of the requests: {SOURCE}; "
        f"prompts have 1/{PROMPT_SCALE} of their real length, answers 1/{NEW_SCALE}."
    )


def verdict(report: Report) -> Iterator[str]:
    """What the figures say, whoever they favour."""
    rows = report.rows
    for role, row in rows.items():
        if role != "semaphore" or row.count("out_of_memory"):
            yield _safety(row, first_error([report.trials[role]]))
        if refused := row.count("refused"):
            yield f"{row.label} refused {refused} of {row.sent} requests ({_reasons(report.trials[role])})."
        if cut := row.count("unfinished"):
            yield (
                f"Time ran out for {row.label}: {cut} of {row.sent} requests were cut off, "
                "and no later round sent others than these."
            )
    for trial in report.trials.values():
        yield from _spread(trial)
    yield from _comparisons(report, rows)
    if report.engine == "threads":
        yield "Threads do not batch, so more at once is no faster: bytes buy safety here, not throughput."
    if report.cache_level and report.weights < 2 * report.cache_level:
        yield "The weights nearly fit the processor's cache: batching pays less here than on a GPU."


def _reasons(trial: Trial) -> str:
    counts = Counter(answer.detail for answer in trial.run.answers if answer.outcome == "refused")
    return ", ".join(f"{reason} {count}" for reason, count in counts.most_common())


def _spread(trial: Trial) -> Iterator[str]:
    """How answers spread over the web processes: the kernel chooses who accepts, and not evenly."""
    counts = Counter(answer.worker for answer in trial.run.answers if answer.worker)
    if counts:
        shares = ", ".join(str(count) for _, count in counts.most_common())
        yield f"{trial.label}: the workers that the kernel gave connections to answered {shares} requests."


def _comparisons(report: Report, rows: Mapping[Role, Figures]) -> Iterator[str]:
    """Compares each trial with the one that it is run for."""
    if {"unprotected", "bytes"} <= rows.keys() and not rows["unprotected"].count("out_of_memory"):
        words = _compared(rows["bytes"], rows["unprotected"])
        yield f"At {report.clients} clients memory does not bind: {words}"
    for ours, other in COMPARED:
        if {ours, other} <= rows.keys():
            yield _compared(rows[ours], rows[other])
    if {"auto", "semaphore"} <= rows.keys():
        ours_after, slots_after = (report.trials[role].figures_from(LEARNT) for role in ("auto", "semaphore"))
        yield f"From the {LEARNT}th answer on: {_compared(ours_after, slots_after)}"


def _safety(row: Figures, error: str) -> str:
    lost = row.count("out_of_memory")
    if not lost:
        return f"{row.label}: nothing ran out of memory (peak {row.peak:.0%} of the wall)."
    return (
        f"{row.label}: {lost} of {row.sent} requests failed for lack of memory; its rates are those of the "
        f"{row.count('ok')} that were answered. The first one: {error}"
    )


def _compared(ours: Figures, other: Figures) -> str:
    if not other.per_cpu_second:
        return f"{other.label} answered nothing: there is no throughput to compare with."
    ratio = ours.per_cpu_second / other.per_cpu_second
    times = ours.per_second / other.per_second
    equal = ", which is equal" if 1 / EQUAL < ratio < EQUAL else ""
    return (
        f"{ours.label} answered {ratio:.2f} x the requests of {other.label} for each second of the server's "
        f"CPU{equal}, and {times:.2f} x for each second, at {ours.mean:.0%} against {other.mean:.0%} mean "
        "use of the wall."
    )


def _plot(trials: Sequence[Trial]) -> Iterator[str]:
    """Memory over time: a line of blocks for each trial, and below it where requests were lost."""
    seconds = max(trial.ended - trial.began for trial in trials)
    wide = max(len(trial.label) for trial in trials)
    yield f"Memory in use, 0-100 % of the wall; {_WIDTH} columns are {seconds:.0f} s; x = out of memory"
    for trial in trials:
        yield f"{trial.label.ljust(wide)} |{''.join(map(_block, trial.columns(_WIDTH, seconds)))}|"
        if lost := trial.lost():
            yield f"{' ' * wide} |{_marks(lost, seconds)}|"


def _block(share: float | None) -> str:
    if share is None:
        return " "
    return _BLOCKS[max(1, min(8, round(share * 8)))]


def _marks(times: Sequence[float], seconds: float) -> str:
    marked = {min(_WIDTH - 1, int(time / seconds * _WIDTH)) for time in times}
    return "".join("x" if column in marked else " " for column in range(_WIDTH))


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
