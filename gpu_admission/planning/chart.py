"""Small pictures for pages: lines over an axis, and a bar of parts, as SVG that needs nothing else.

Owns shapes and scales; colours are the page's classes, so that they follow light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import msgspec

WIDTH, HEIGHT = 900, 240
_LEFT, _BOTTOM, _TOP = 64, 34, 14
_STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1c; --paper: #fff; --soft: #ddd; --fill: #fafafa;
  --c0: #1f6fb2; --c1: #b35900; --c2: #2a7d3f; --c3: #7a3e9d; --c4: #8a6d00; --c5: #b00020 }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --paper: #161616; --soft: #444; --fill: #1f1f1f;
  --c0: #7db8ea; --c1: #f0a860; --c2: #7fce93; --c3: #c79be3; --c4: #dcc25e; --c5: #ff8a9a } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums;
  display: block; overflow-x: auto }
th, td { text-align: right; padding: .3rem .5rem; border-bottom: 1px solid var(--soft); white-space: nowrap }
th:first-child, td:first-child { text-align: left }
pre { background: var(--fill); border: 1px solid var(--soft); padding: .8rem; overflow-x: auto }
svg { width: 100%; height: auto; background: var(--fill); border: 1px solid var(--soft) }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif }
svg .axis { stroke: var(--soft) } svg .line { fill: none; stroke-width: 2 }
figure { margin: 1.2rem 0 } figcaption { font-size: .9rem }
"""


def style() -> str:
    """The sheet of a page with charts: light and dark, and a colour for each line and part."""
    return _STYLE + "".join(
        f"svg .k{i} {{ stroke: var(--c{i}) }} svg .f{i}, svg text.f{i} {{ fill: var(--c{i}) }}\n"
        for i in range(6)
    )


class Series(msgspec.Struct, frozen=True):
    """One line: (x, y) in order; a ``y`` that is infinite or NaN is left out."""

    name: str
    points: Sequence[tuple[float, float]]


def line_chart(series: Sequence[Series], *, x: str, y: str, caption: str) -> str:
    """A figure with a line for each series, named beside its end; ``x`` and ``y`` are the axes' words."""
    shown = [Series(s.name, [p for p in s.points if all(map(math.isfinite, p))]) for s in series]
    points = [point for s in shown for point in s.points]
    if not points:
        return ""
    wide = max(px for px, _ in points) or 1.0
    high = max(py for _, py in points) or 1.0
    body = "".join(_line(s, index, wide, high) for index, s in enumerate(shown))
    return _figure(f"{_axes(wide, high, x, y)}{body}{_legend(shown)}", HEIGHT, caption)


def part_bar(parts: Sequence[tuple[str, float]], *, caption: str) -> str:
    """A figure of one bar, divided in proportion."""
    whole = sum(size for _, size in parts) or 1.0
    at, body = 0.0, ""
    for index, (name, size) in enumerate(parts):
        width = WIDTH * size / whole
        body += (
            f'<rect class="f{index % 6}" x="{at:.1f}" y="10" width="{max(0.5, width - 1):.1f}" height="46">'
            f"<title>{escape(name)}</title></rect>"
        )
        at += width
    names = "".join(
        f'<text class="f{index % 6}" x="{8 + 300 * (index % 3)}" y="{76 + 18 * (index // 3)}">'
        f"■ {escape(name)}</text>"
        for index, (name, _) in enumerate(parts)
    )
    return _figure(body + names, 84 + 18 * ((len(parts) - 1) // 3), caption)


def _figure(body: str, height: int, caption: str) -> str:
    return (
        f'<figure><svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(caption)}">{body}</svg>'
        f"<figcaption>{escape(caption)}</figcaption></figure>\n"
    )


def _line(series: Series, index: int, wide: float, high: float) -> str:
    places = " ".join(f"{_x(px, wide):.1f},{_y(py, high):.1f}" for px, py in series.points)
    return f'<polyline class="line k{index % 6}" points="{places}"/>'


def _legend(series: Sequence[Series]) -> str:
    return "".join(
        f'<text class="f{index % 6}" x="{_LEFT + 10 + 200 * index}" y="{_TOP + 12}">■ {escape(s.name)}</text>'
        for index, s in enumerate(series)
    )


def _axes(wide: float, high: float, x: str, y: str) -> str:
    lines = ""
    for step in range(5):
        up = _y(high * step / 4, high)
        lines += f'<line class="axis" x1="{_LEFT}" x2="{WIDTH}" y1="{up:.1f}" y2="{up:.1f}"/>'
        lines += f'<text x="4" y="{up + 4:.1f}">{high * step / 4:.3g}</text>'
        lines += (
            f'<text x="{_x(wide * step / 4, wide) - 10:.1f}" y="{HEIGHT - 18}">{wide * step / 4:.3g}</text>'
        )
    return f'{lines}<text x="{_LEFT + 10}" y="{HEIGHT - 4}">{escape(x)}; upwards: {escape(y)}</text>'


def _x(value: float, wide: float) -> float:
    return _LEFT + value / wide * (WIDTH - _LEFT - 24)


def _y(value: float, high: float) -> float:
    return HEIGHT - _BOTTOM - value / high * (HEIGHT - _BOTTOM - _TOP - 20)
