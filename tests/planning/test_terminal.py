"""Plain lines in a log, drawn tables on a terminal, and no silence while something goes on."""

from __future__ import annotations

import io
import time

import pytest

from gpu_admission.planning import terminal
from gpu_admission.planning.terminal import Stages, Table, Terminal

TABLE = Table(("name", "how\nmany", "bytes"), [("one", "1", "2.00 GiB"), ("eleven", "11", "3 B")])


def test_a_plain_table_has_its_words_to_the_left_and_its_figures_to_the_right() -> None:
    out = io.StringIO()
    Terminal(out).table(TABLE)
    assert out.getvalue().splitlines() == [
        "         how",
        "name    many     bytes",
        "one        1  2.00 GiB",
        "eleven    11       3 B",
    ]


def test_on_a_terminal_a_table_is_drawn_with_the_same_cells() -> None:
    out = io.StringIO()
    shown = Terminal(out, rich=True)
    assert shown.rich
    shown.table(TABLE)
    for cell in ("name", "eleven", "2.00 GiB"):
        assert cell in out.getvalue()


def test_what_looks_like_markup_is_shown_as_it_is() -> None:
    out = io.StringIO()
    shown = Terminal(out, rich=True)
    shown.line("[red]as it is[/red]")
    shown.table(Table(("x",), [("[bold]y",)]))
    assert "[red]as it is[/red]" in out.getvalue()
    assert "[bold]y" in out.getvalue()


def test_without_rich_lines_are_all_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "find_spec", lambda name: None)
    assert not Terminal(io.StringIO(), rich=True).rich


def _wait_for(out: io.StringIO, words: str) -> None:
    deadline = time.monotonic() + 20
    while words not in out.getvalue():
        assert time.monotonic() < deadline, out.getvalue()
        time.sleep(0.01)


def test_a_stage_that_takes_long_says_that_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "QUIET", 0.02)
    out = io.StringIO()
    with Stages(Terminal(out)) as stages:
        stages.say("loading ...")
        _wait_for(out, "loading 0 s\n")
    assert out.getvalue().startswith("loading ...\n")


def test_progress_that_stands_still_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "QUIET", 0.02)
    out = io.StringIO()
    with Terminal(out).progress("sending", 100) as step:
        step("so far")
        _wait_for(out, "sending: 1/100 so far\n")


def test_nothing_is_said_after_a_stage_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "QUIET", 0.01)
    out = io.StringIO()
    with Stages(Terminal(out)) as stages:
        stages.say("loading")
    said = out.getvalue()
    time.sleep(0.05)
    assert out.getvalue() == said
