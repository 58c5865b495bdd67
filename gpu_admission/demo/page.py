"""The report as one HTML page that needs nothing else: no script, no font, no picture from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from gpu_admission.demo.figures import Trial
from gpu_admission.demo.report import HEADINGS, Report, cells, setting, verdict

_WIDTH, _HEIGHT, _POINTS = 900, 140, 300
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1c1c1c }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { text-align: right; padding: .3rem .5rem; border-bottom: 1px solid #ddd }
td { white-space: nowrap }
th { font-weight: 600 } th:first-child, td:first-child { text-align: left }
svg { width: 100%; height: auto; background: #fafafa; border: 1px solid #ddd }
figure { margin: 1.2rem 0 } figcaption { font-size: .9rem }
.use { fill: #9dc3e6; stroke: #1f6fb2 } .lost { stroke: #b00020 }
.wall { stroke: #b00020; stroke-dasharray: 6 4 }
"""


def page(report: Report) -> str:
    """The whole page."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>gpu-admission demo</title>'
        f"<style>{_STYLE}</style></head><body>\n<h1>gpu-admission demo</h1>\n"
        f"{_paragraphs(setting(report))}{_table(report)}{_figures(list(report.trials.values()))}"
        f"<h2>What it says</h2>\n{_paragraphs(verdict(report))}</body></html>\n"
    )


def _paragraphs(sentences: Iterable[str]) -> str:
    return "".join(f"<p>{escape(sentence)}</p>\n" for sentence in sentences)


def _table(report: Report) -> str:
    head = _line("th", HEADINGS)
    body = "".join(_line("td", cells(row)) for row in report.rows.values())
    return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>\n"


def _line(tag: str, texts: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(text)}</{tag}>' for text in texts)}</tr>"


def _figures(trials: Sequence[Trial]) -> str:
    seconds = max(trial.ended - trial.began for trial in trials)
    return "".join(_figure(trial, seconds) for trial in trials)


def _figure(trial: Trial, seconds: float) -> str:
    lost = trial.lost()
    return (
        f'<figure><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{_area(trial, seconds)}'
        f'<line class="wall" x1="0" x2="{_WIDTH}" y1="{_y(1):.1f}" y2="{_y(1):.1f}"/>'
        f"{_ticks(lost, seconds)}</svg>"
        f"<figcaption>{escape(trial.label)}: memory in use over {seconds:.0f} s; dashed: the wall; "
        f"red: {len(lost)} requests out of memory</figcaption></figure>\n"
    )


def _area(trial: Trial, seconds: float) -> str:
    step = _WIDTH / _POINTS
    known = [(i, share) for i, share in enumerate(trial.columns(_POINTS, seconds)) if share is not None]
    if not known:
        return ""
    top = " ".join(f"{i * step:.1f},{_y(share):.1f}" for i, share in known)
    return f'<polygon class="use" points="0,{_HEIGHT} {top} {known[-1][0] * step:.1f},{_HEIGHT}"/>'


def _ticks(times: Sequence[float], seconds: float) -> str:
    places = sorted({round(time / seconds * _WIDTH) for time in times})
    return "".join(f'<line class="lost" x1="{x}" x2="{x}" y1="0" y2="8"/>' for x in places)


def _y(share: float) -> float:
    """A little of the picture is above the wall."""
    return _HEIGHT - max(0.0, share) * (_HEIGHT - 12)
