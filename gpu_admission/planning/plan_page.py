"""A plan as one HTML page that needs nothing else: no script, no font, no picture from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from gpu_admission.planning.chart import Series, line_chart, part_bar, style
from gpu_admission.planning.plan_report import (
    Report,
    load_table,
    memory_table,
    played_notes,
    played_table,
    sentences,
    size_table,
)
from gpu_admission.planning.terminal import Table
from gpu_admission.planning.waiting import Played
from gpu_admission.sizes import format_bytes

_POINTS = 400


def page(report: Report) -> str:
    """The whole page."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(report.title)}</title><style>{style()}</style></head><body>\n<main>"
        f"<h1>{escape(report.title)}</h1>\n<p>Asked: {escape(report.demand.says)}.</p>\n"
        f"<h2>Memory</h2>\n{_memory(report)}{_table(memory_table(report.plan))}"
        f"<h2>How many at once</h2>\n{_table(size_table(report.plan))}"
        f"<h2>Played</h2>\n{_table(played_table(report))}"
        f"{_lines(played_notes(report))}{_use(report.played)}{_loads(report)}"
        f"<h2>What it rests on</h2>\n{_lines(sentences(report))}"
        f"{_promise(report)}<h2>Settings</h2>\n<pre>{escape(report.settings)}</pre></main></body></html>\n"
    )


def _lines(texts: Iterable[str]) -> str:
    return "".join(f"<p>{escape(text)}</p>" for text in texts)


def _promise(report: Report) -> str:
    return f"<p><strong>{escape(report.promise)}</strong></p>\n" if report.promise else ""


def _memory(report: Report) -> str:
    parts = [(name, -size) for name, size in report.plan.terms.items() if size < 0]
    named = [(f"{name} {format_bytes(int(size))}", float(size)) for name, size in parts]
    left = report.plan.capacity
    return part_bar(
        [*named, (f"for requests {format_bytes(left)}", float(left))], caption="Where the memory goes"
    )


def _use(played: Sequence[Played]) -> str:
    """Bytes in use over time, for each."""
    series = [Series(each.name, _thinned(each.held)) for each in played]
    return line_chart(series, x="seconds", y="% of the capacity in use", caption="Bytes in use while played")


def _thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    step = max(1, len(points) // _POINTS)
    return [(at, 100 * share) for at, share in points[::step]]


def _loads(report: Report) -> str:
    if not report.by_load:
        return ""
    series = [
        Series(f"wait p{share * 100:.0f}", [(rate, played.wait(share)) for rate, played in report.by_load])
        for share in (0.5, 0.95, 0.99)
    ]
    chart = line_chart(
        series, x="requests a second", y="seconds until work begins", caption="Which wait to expect"
    )
    return f"<h2>Which wait to expect</h2>\n{_table(load_table(report))}{chart}"


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(text.replace(chr(10), ' '))}</th>" for text in table.headings)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>\n"
