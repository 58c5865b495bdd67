"""Where a command writes: a terminal with colours, tables and progress, or plain lines.

Owns the choice between the two, and the plain form. ``rich`` draws the former (extra ``cli``); if it
is not installed, or the output is no terminal, there are only plain lines.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.util import find_spec
from types import TracebackType
from typing import Any, TextIO

import msgspec

QUIET = 2.5
"""Seconds after which plain progress prints where it is, so that it is never silent for 3."""


class Table(msgspec.Struct, frozen=True):
    """Headings and rows of text. The first column is to the left, figures are to the right."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""

    def lines(self) -> Iterator[str]:
        """Plain text; a heading may have several lines."""
        heads = [heading.split("\n") for heading in self.headings]
        deep = max(map(len, heads))
        above = [[""] * (deep - len(head)) + head for head in heads]
        lines = [*([head[i] for head in above] for i in range(deep)), *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for first, *others in lines:
            cells = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
            yield "  ".join([first.ljust(widths[0]), *cells]).rstrip()


class Terminal:
    """Writes to ``stream``. ``rich`` is true on a terminal with rich installed, or as given."""

    def __init__(self, stream: TextIO | None = None, *, rich: bool | None = None) -> None:
        self._stream = sys.stdout if stream is None else stream
        self._said = time.monotonic()
        self._console: Any = None
        if (self._stream.isatty() if rich is None else rich) and find_spec("rich") is not None:
            from rich.console import Console

            self._console = Console(file=self._stream, force_terminal=rich, highlight=False)

    @property
    def rich(self) -> bool:
        return self._console is not None

    def line(self, text: str = "", *, style: str = "") -> None:
        """One line; ``style`` is rich's (``bold``, ``red``), and nothing elsewhere."""
        self._said = time.monotonic()
        if self._console is None:
            print(text, file=self._stream, flush=True)
        else:
            self._console.print(text, style=style or None, markup=False, soft_wrap=True)

    def heading(self, text: str) -> None:
        self.line()
        self.line(text, style="bold cyan")

    def table(self, table: Table) -> None:
        if self._console is None:
            for line in table.lines():
                self.line(line)
            return
        self._console.print(_drawn(table))

    @contextmanager
    def stage(self, label: str) -> Iterator[None]:
        """Says from time to time that ``label`` still goes on; a spinner on a terminal."""
        if self._console is not None:
            with self._console.status(label):
                yield
            return
        began = time.monotonic()
        with self._heartbeat(lambda: self.line(f"{label} {time.monotonic() - began:.0f} s")):
            yield

    @contextmanager
    def progress(self, label: str, total: int) -> Iterator[Callable[[str], None]]:
        """Yields a callback for each step of ``total``; its text is shown beside ``label``."""
        if self._console is not None:
            with _bar(self._console) as bar:
                task = bar.add_task(label, total=total, said="")
                yield lambda said: bar.update(task, advance=1, said=said)
            return
        spoken = _Spoken(self.line, label, total)
        with self._heartbeat(spoken.say):
            yield spoken.step

    def _heartbeat(self, beat: Callable[[], None]) -> _Heartbeat:
        return _Heartbeat(beat, lambda: self._said)


class Stages:
    """One thing after another on ``terminal``: lines and progress, and never silent for long."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._now = ExitStack()

    def __enter__(self) -> Stages:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._now.close()

    def say(self, line: str) -> None:
        """Print what was found, or what begins: it goes on until the next line."""
        self._next(self._terminal.stage(line.rstrip(" .")), line)

    def watch(self, label: str, total: int) -> Callable[[str], None]:
        """A callback for each step of ``total``."""
        step: Callable[[str], None] = self._next(self._terminal.progress(label, total))
        return step

    def _next(self, stage: AbstractContextManager[Any], line: str | None = None) -> Any:
        self._now.close()
        if line is not None:
            self._terminal.line(line)
        return self._now.enter_context(stage)


class _Heartbeat:
    """Calls ``beat``, which says something, whenever ``QUIET`` seconds have passed since ``said``."""

    def __init__(self, beat: Callable[[], None], said: Callable[[], float]) -> None:
        self._beat = beat
        self._said = said
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> _Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(max(0.01, self._left())):
            if self._left() <= 0:
                self._beat()

    def _left(self) -> float:
        return self._said() + QUIET - time.monotonic()


class _Spoken:
    """Progress in plain lines: one for each tenth."""

    def __init__(self, line: Callable[[str], None], label: str, total: int) -> None:
        self._line = line
        self._label = label
        self._total = total
        self._done = 0
        self._said = ""

    def step(self, said: str) -> None:
        """Count one step; print a line for each tenth."""
        self._done += 1
        self._said = said
        if self._done % max(1, self._total // 10) == 0 or self._done == self._total:
            self.say()

    def say(self) -> None:
        self._line(f"{self._label}: {self._done}/{self._total} {self._said}".rstrip())


def _drawn(table: Table) -> Any:
    from rich import box
    from rich.table import Table as Drawn

    drawn = Drawn(title=table.title or None, box=box.SIMPLE_HEAD, header_style="bold", title_justify="left")
    for index, heading in enumerate(table.headings):
        drawn.add_column(heading, justify="right" if index else "left", no_wrap=index == 0)
    for row in table.rows:
        drawn.add_row(*(_escaped(cell) for cell in row))
    return drawn


def _escaped(text: str) -> Any:
    from rich.text import Text

    return Text(text)


def _bar(console: Any) -> Any:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[said]}"),
        TimeElapsedColumn(),
        console=console,
    )
