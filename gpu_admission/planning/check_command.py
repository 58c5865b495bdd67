"""``gpu-admission check app:app``: what would be measured and metered here, and what is wrong with it.

Owns what is printed and what counts as a mistake. No request is made. How an app is started is in
``appstart``, how it is walked in ``appdoors``, and which patterns fit no route in ``strays``.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpu_admission.admission import Admission
from gpu_admission.admission.startline import start_line
from gpu_admission.planning.appdoors import Looked, look_into, name_of, reader_of
from gpu_admission.planning.appstart import run_started
from gpu_admission.planning.exits import failed
from gpu_admission.planning.named import named
from gpu_admission.planning.outgrown import outgrown
from gpu_admission.planning.strays import strays
from gpu_admission.planning.terminal import Table, Terminal
from gpu_admission.sizes import format_bytes

_DESCRIPTION = """
What would be measured and metered on this machine: devices, the capacity term by term, each route with
its estimator, the paths that pass at once. The app is imported, started, looked into and shut down, so that
the weights that it loads are on the device. One that shares a budget is not started, since it would join
that budget. The exit status is 1 where something is wrong, 2 where the app can't be had.
"""
_LIMIT = 120.0
_MOST_PATHS = 8


def main(arguments: Sequence[str]) -> int:
    """0: all is well; 1: a mistake was found; 2: there is no such app, or no admission in it."""
    options = _parser().parse_args(arguments)
    module = options.app.partition(":")[0]
    try:
        app = _app(options.app)
        looked = look_into(app, vars(sys.modules[module]))
        if not looked.admissions:
            raise ValueError(f"{options.app} has no GPUAdmission, and its module no Admission")
    except (Exception, SystemExit) as error:  # whatever importing or building the app raises
        return failed("check", _sentence(error))
    terminal = Terminal()
    why_not = _reason_not_to_start(looked, no_startup=options.no_startup)
    if why_not:
        terminal.line(f"the app was not started: {why_not}")
        mistakes = _show(terminal, looked)
    else:
        mistakes = _started(terminal, app, vars(sys.modules[module]), options.startup_timeout)
    terminal.line()
    for mistake in mistakes:
        terminal.line(f"mistake: {mistake}", style="bold red")
    if not mistakes:
        terminal.line("no mistake was found", style="green")
    return 1 if mistakes else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpu-admission check", description=_DESCRIPTION)
    parser.add_argument("app", metavar="module:app", help="as uvicorn takes it; module:function() calls it")
    parser.add_argument("--no-startup", action="store_true", help="do not run the app's startup and shutdown")
    parser.add_argument(
        "--startup-timeout",
        type=float,
        default=_LIMIT,
        metavar="SECONDS",
        help=f"for the startup, and again for the shutdown (default: {_LIMIT:g})",
    )
    return parser


def _app(text: str) -> Any:
    if text.endswith("()"):
        return named(text[:-2], what="app")()
    return named(text, what="app")


def _sentence(error: BaseException) -> str:
    known = isinstance(error, (ValueError, TypeError)) and str(error)
    return str(error) if known else f"the app can't be had: {type(error).__name__}: {error}"


def _reason_not_to_start(looked: Looked, *, no_startup: bool) -> str:
    if no_startup:
        return "--no-startup"
    shared = [each.settings.name for each in looked.admissions if each.settings.shared is not None]
    return f"budget {shared[0]!r} is shared, and a start would join it" if shared else ""


def _started(terminal: Terminal, app: Any, names: Mapping[str, Any], limit: float) -> list[str]:
    """What ``_show`` returns, while the app is started; and why it has not, if so."""
    said = _Said()

    def look(failure: str) -> list[str]:
        said.end()
        said.tell(terminal)
        found = [f"the app's startup failed: {failure}"] if failure else []
        return found + _show(terminal, look_into(app, names))

    with said:
        return run_started(app, look, limit=limit)


def _show(terminal: Terminal, looked: Looked) -> list[str]:
    """Print what the app's admissions do; the mistakes that were found on the way."""
    mistakes = [mistake for each in looked.admissions for mistake in _budget(terminal, each, looked)]
    if looked.passing:
        terminal.heading("Not metered")
        for each in looked.passing:
            terminal.line(f"{each.method} {each.path}")
        batchers = sorted(
            batcher.name for admission in looked.admissions for batcher in admission.metering.batchers
        )
        if batchers:
            terminal.line(
                f"of these, what calls a batcher is metered there, by the batch: {', '.join(batchers)}"
            )
    return mistakes


def _budget(terminal: Terminal, admission: Admission, looked: Looked) -> Iterator[str]:
    """Print what ``admission`` does; the mistakes that were found on the way."""
    settings = admission.settings
    terminal.heading(f"Budget {settings.name!r}")
    with _Said() as said:
        if admission.mode != "off":
            admission.monitor.measure()
    said.tell(terminal)
    if isinstance(settings.capacity, int):
        terminal.line(f"capacity {format_bytes(admission.largest)} was given in bytes: it is not measured")
    control = admission.metering.control_paths()
    capacity = admission.locked.ledger.capacity
    line = start_line(settings, capacity, admission.monitor.names, (), admission.startup.taken)
    terminal.line(line.partition(" starts: ")[2])
    terminal.line(_passing_at_once(control))
    terminal.table(Table(("request", "metered by", "estimator", "body read as"), _rows(admission, looked)))
    for warning in outgrown(admission, looked):
        terminal.line(warning, style="yellow")
    yield from _mistakes(admission, looked)


def _rows(admission: Admission, looked: Looked) -> Sequence[Sequence[str]]:
    rows: list[Sequence[str]] = [
        (f"{each.method} {each.path}", each.by, name_of(each.rule.estimator), reader_of(each.rule))
        for each in looked.metered
        if each.admission is admission
    ]
    for owner, below in looked.middleware:
        if owner is admission:
            by = "middleware" if "GET" in admission.settings.methods else "middleware; GET passes"
            rows += [
                (f"{path.rstrip('/')}/**", by, "by path", "by path")
                for path in looked.unknown
                if path.startswith(below)
            ]
    batchers = sorted(batcher.name for batcher in admission.metering.batchers)
    rows += [(f"batches of {name}", "batcher", "cost=", "-") for name in batchers]
    return rows or [("what the app asks itself", "lease, job", "-", "-")]


def _passing_at_once(control: Sequence[str]) -> str:
    if not control:
        return "control paths: none"
    more = f" and {len(control) - _MOST_PATHS} more" if len(control) > _MOST_PATHS else ""
    return f"control paths, which pass at once: {', '.join(control[:_MOST_PATHS])}{more}"


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
    yield from strays(admission, looked)


class _Said(logging.Handler):
    """What the package logs inside the block, in place of the log."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def tell(self, terminal: Terminal) -> None:
        """Print them, but for the start line and what a mistake says again."""
        for record in self.records:
            text, warns = record.getMessage(), record.levelno >= logging.WARNING
            if record.levelno < logging.ERROR and " starts: " not in text:
                terminal.line(text, style="yellow" if warns else "")

    def end(self) -> None:
        logger = logging.getLogger("gpu_admission")
        logger.removeHandler(self)
        logger.setLevel(self._before[0])
        logger.propagate = self._before[1]

    def __enter__(self) -> _Said:
        logger = logging.getLogger("gpu_admission")
        self._before = logger.level, logger.propagate
        logger.setLevel(logging.INFO)
        logger.propagate = False
        logger.addHandler(self)
        return self

    def __exit__(self, *error: object) -> None:
        self.end()
