"""``gpu-admission check app:app``: what would be measured and metered here, and what is wrong with it.

Owns what is printed and what counts as a mistake. The app is imported and inspected, never run: it is
not started, and no request is made. How it is walked is in ``appdoors``.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from gpu_admission.admission import Admission
from gpu_admission.admission.startline import start_line
from gpu_admission.planning.appdoors import Looked, look_into, name_of, reader_of
from gpu_admission.planning.named import named
from gpu_admission.planning.terminal import Table, Terminal
from gpu_admission.rules.patterns import Patterns
from gpu_admission.sizes import format_bytes

_DESCRIPTION = """
What would be measured and metered on this machine: devices, the capacity term by term, each route with
its estimator, the paths that pass at once. The app is imported, but not started: weights that it loads at
its startup are not on the device yet. The exit status is 1 where something is wrong, 2 where the app
can't be had.
"""
_MOST_PATHS = 8


def main(arguments: Sequence[str]) -> int:
    """0: all is well; 1: a mistake was found; 2: there is no such app, or no admission in it."""
    options = _parser().parse_args(arguments)
    try:
        app = _app(options.app)
        looked = look_into(app, vars(sys.modules[options.app.partition(":")[0]]))
        if not looked.admissions:
            raise ValueError(f"{options.app} has no GPUAdmission, and its module no Admission")
    except (Exception, SystemExit) as error:  # whatever importing or building the app raises
        print(f"gpu-admission check: {_sentence(error)}", file=sys.stderr)
        return 2
    terminal = Terminal()
    mistakes = [mistake for each in looked.admissions for mistake in _show(terminal, each, looked)]
    _show_rest(terminal, looked)
    terminal.line()
    for mistake in mistakes:
        terminal.line(f"mistake: {mistake}", style="bold red")
    if not mistakes:
        terminal.line("no mistake was found", style="green")
    return 1 if mistakes else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpu-admission check", description=_DESCRIPTION)
    parser.add_argument("app", metavar="module:app", help="as uvicorn takes it; module:function() calls it")
    return parser


def _app(text: str) -> Any:
    if text.endswith("()"):
        return named(text[:-2], what="app")()
    return named(text, what="app")


def _sentence(error: BaseException) -> str:
    known = isinstance(error, (ValueError, TypeError)) and str(error)
    return str(error) if known else f"the app can't be had: {type(error).__name__}: {error}"


def _show(terminal: Terminal, admission: Admission, looked: Looked) -> Iterator[str]:
    """Print what ``admission`` does; the mistakes that were found on the way."""
    settings = admission.settings
    terminal.heading(f"Budget {settings.name!r}")
    with _Said() as said:
        if admission.mode != "off":
            admission.monitor.measure()
    for record in said.records:
        warns = record.levelno >= logging.WARNING
        terminal.line(record.getMessage(), style="yellow" if warns else "")
    if isinstance(settings.capacity, int):
        terminal.line(f"capacity {format_bytes(admission.largest)} was given in bytes: it is not measured")
    control = admission.metering.control_paths()
    capacity = admission.locked.ledger.capacity
    line = start_line(settings, capacity, admission.monitor.names, (), admission.startup.taken)
    terminal.line(line.partition(" starts: ")[2])
    terminal.line(_passing_at_once(control))
    terminal.table(Table(("request", "metered by", "estimator", "body read as"), _rows(admission, looked)))
    yield from _mistakes(admission, looked)


def _rows(admission: Admission, looked: Looked) -> Sequence[Sequence[str]]:
    rows: list[Sequence[str]] = [
        (f"{each.method} {each.path}", each.by, name_of(each.rule.estimator), reader_of(each.rule))
        for each in looked.metered
        if each.admission is admission
    ]
    for owner, below in looked.middleware:
        if owner is admission:
            rows += [
                (f"{path.rstrip('/')}/**", "middleware", "by path", "by path")
                for path in looked.unknown
                if path.startswith(below)
            ]
    return rows or [("what the app asks itself", "lease, job", "-", "-")]


def _passing_at_once(control: Sequence[str]) -> str:
    if not control:
        return "control paths: none"
    more = f" and {len(control) - _MOST_PATHS} more" if len(control) > _MOST_PATHS else ""
    return f"control paths, which pass at once: {', '.join(control[:_MOST_PATHS])}{more}"


def _show_rest(terminal: Terminal, looked: Looked) -> None:
    if looked.passing:
        terminal.heading("Not metered")
        for each in looked.passing:
            terminal.line(f"{each.method} {each.path}")


def _mistakes(admission: Admission, looked: Looked) -> Iterator[str]:
    if admission.monitor.failure:
        yield admission.monitor.failure
    yield from admission.startup.misfits()
    ours = [each for each in looked.metered if each.admission is admission]
    for each in ours:
        if each.rule.estimator is None:
            yield (
                f"{each.method} {each.path}: no pattern of the estimator mapping matches: "
                "it is charged the whole capacity"
            )
    if not looked.unknown and not looked.inside:
        yield from _unmatched(admission, [each.path for each in looked.metered])


def _unmatched(admission: Admission, paths: Sequence[str]) -> Iterator[str]:
    """Patterns that no route of the app matches: most often a typo."""
    settings = admission.settings
    mapping = settings.estimator if isinstance(settings.estimator, dict) else {}
    for name, patterns in (("estimator", list(mapping)), ("routes", settings.routes or ())):
        for pattern in patterns:
            if all(Patterns([pattern], name=name).match(path) is None for path in paths):
                yield f"{name}: no route of the app matches {pattern!r}"


class _Said(logging.Handler):
    """What the package logs inside the block, in place of the log."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def __enter__(self) -> _Said:
        logger = logging.getLogger("gpu_admission")
        self._before = logger.level, logger.propagate
        logger.setLevel(logging.INFO)
        logger.propagate = False
        logger.addHandler(self)
        return self

    def __exit__(self, *error: object) -> None:
        logger = logging.getLogger("gpu_admission")
        logger.removeHandler(self)
        logger.setLevel(self._before[0])
        logger.propagate = self._before[1]
