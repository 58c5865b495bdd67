"""What the demo makes of its measurements: figures, table, plot, verdict, page."""

from __future__ import annotations

import io
import re
from html.parser import HTMLParser

import msgspec
import pytest

from gpu_admission.demo.figures import Trial, first_error, quantile
from gpu_admission.demo.load import Answer, Outcome, Run, Sample
from gpu_admission.demo.page import page
from gpu_admission.demo.report import HEADINGS, Report, cells, show, verdict
from gpu_admission.demo.trace import Ask
from gpu_admission.planning.terminal import Terminal

START = 1000.0


def answers(*outcomes: Outcome, apart: float = 1.0, takes: float = 2.0) -> list[Answer]:
    """One answer for each outcome, ``apart`` seconds after the one before."""
    return [
        Answer(
            Ask(1, 1), outcome, START + n * apart, START + n * apart + takes, "no room" * (outcome != "ok")
        )
        for n, outcome in enumerate(outcomes)
    ]


def trial(label: str, *outcomes: Outcome, cpu: float = 2.0, use: float = 50) -> Trial:
    """A second apart, each takes two; memory at ``use`` of 100 bytes from the first second on."""
    said = answers(*outcomes)
    seconds = len(said) + 1
    samples = [Sample(START - 1, 99, 0.0), Sample(START, 0, 7.0)]
    samples += [Sample(START + n, int(use), 7.0 + cpu * n / seconds) for n in range(1, seconds + 1)]
    return Trial(label, Run(said, samples), 100)


def report(plain: Trial, slots: Trial, ours: Trial, **changes: object) -> Report:
    made = Report(
        engine="batch",
        clients=48,
        room=100,
        weights=600,
        cache_level=100,
        device="cpu",
        wall="a wall",
        trials={"unprotected": plain, "semaphore": slots, "bytes": ours},
    )
    return msgspec.structs.replace(made, **changes)


def text(made: Report) -> str:
    """What ``show`` writes where there is no terminal."""
    out = io.StringIO()
    show(made, Terminal(out))
    return out.getvalue()


def usual(**changes: object) -> Report:
    return report(
        trial("unprotected", "ok", "out_of_memory", "out_of_memory", use=100),
        trial("Semaphore(2)", "ok", "ok", "ok", cpu=3.0, use=25),
        trial("GPUAdmission", "ok", "ok", "refused", cpu=1.0, use=90),
        **changes,
    )


def test_figures_are_rates_of_what_was_answered_and_shares_of_the_wall() -> None:
    figures = trial("x", "ok", "out_of_memory", "ok", "failed", "unfinished", cpu=4.0, use=60).figures
    assert figures.sent == 5
    assert figures.count("ok") == 2
    assert figures.count("refused") == 0
    assert figures.per_second == 2 / 6  # the last one ended six seconds after the first was sent
    assert figures.per_cpu_second == 2 / 4
    assert (figures.p50, figures.p95) == (2.0, 2.0)
    assert figures.peak == 0.6
    assert figures.mean == pytest.approx(0.6 * 4 / 5)  # samples at 0, 1, 2, 3, 4: loaded, the first empty


def test_figures_from_an_answer_on_leave_out_what_was_before() -> None:
    whole = trial("x", "ok", "out_of_memory", "ok", "ok", cpu=5.0, use=60)
    rest = whole.figures_from(2)  # the second was answered after three seconds of five
    assert (rest.sent, rest.count("ok"), rest.count("out_of_memory")) == (2, 2, 0)
    assert rest.per_second == 2 / 2
    assert rest.per_cpu_second == pytest.approx(2 / 2)
    assert rest.mean == 0.6
    assert whole.figures_from(9).count("ok") == 0


def test_figures_of_nothing_are_nothing() -> None:
    nothing = Trial("x", Run(answers("failed", takes=0.0), []), 100).figures
    assert (nothing.per_second, nothing.per_cpu_second, nothing.p50) == (0.0, 0.0, None)
    assert (nothing.peak, nothing.mean) == (0.0, 0.0)
    assert cells(nothing)[8] == "-"


@pytest.mark.parametrize(("share", "value"), [(0.0, 1), (0.5, 3), (0.95, 4), (1.0, 4)])
def test_quantiles_are_values_that_were_measured(share: float, value: float) -> None:
    assert quantile([1, 2, 3, 4], share) == value


def test_the_first_error_is_the_devices_own() -> None:
    assert first_error([trial("x", "ok"), trial("y", "ok", "out_of_memory")]) == "no room"
    assert first_error([trial("x", "ok")]) == ""


def test_columns_are_means_over_equal_times_and_none_where_it_had_ended() -> None:
    columns = trial("x", "ok", "ok", use=40).columns(6, 6.0)
    assert columns == [0.0, 0.4, 0.4, 0.4, None, None]


def test_the_table_has_a_line_for_each_with_every_count() -> None:
    lines = text(usual()).splitlines()
    head = next(n for n, line in enumerate(lines) if "out of memory" in line and "requests/s" in line)
    for heading in HEADINGS[1:]:
        assert heading in lines[head]
    counts = ["1", "of", "3", "2", "0", "0", "0"]
    assert lines[head + 1].split() == ["unprotected", *counts, "0.25", "0.50", "2.0", "2.0", "100%", "67%"]
    assert lines[head + 2].split()[:4] == ["Semaphore(2)", "3", "of", "3"]
    assert lines[head + 3].split()[:6] == ["GPUAdmission", "2", "of", "3", "0", "1"]
    assert len({line.rfind("%") for line in lines[head + 1 : head + 4]}) == 1  # in columns


def test_the_plot_shows_use_over_time_and_where_requests_were_lost() -> None:
    lines = text(usual()).splitlines()
    plain = next(n for n, line in enumerate(lines) if line.startswith("unprotected  |"))
    assert "█" in lines[plain]
    assert "x" in lines[plain + 1]
    slots, ours = lines[plain + 2], lines[plain + 3]  # nothing lost: no line below
    assert slots.startswith("Semaphore(2) |")
    assert ours.startswith("GPUAdmission |")
    assert set(slots.split("|")[1]) == {"▁", "▂", " "}
    assert "▇" in ours
    assert len({len(line) for line in lines[plain : plain + 4]}) == 1


def said(made: Report) -> str:
    return "\n".join(verdict(made))


def test_the_verdict_tells_losses_refusals_and_the_ratio() -> None:
    words = said(usual())
    assert "unprotected: 2 of 3 requests failed for lack of memory; its rates are those of the 1" in words
    assert "The first one: no room" in words
    assert "GPUAdmission: nothing ran out of memory (peak 90% of the wall)" in words
    assert "GPUAdmission refused 1 of 3 requests (no room 1)" in words
    assert "GPUAdmission answered 2.00 x the requests of Semaphore(2)" in words
    assert "equal" not in words


def test_the_verdict_tells_our_own_losses_too() -> None:
    good, bad = trial("Semaphore(2)", "ok"), trial("GPUAdmission", "ok", "out_of_memory")
    words = said(report(trial("unprotected", "out_of_memory", "ok"), good, bad))
    assert "GPUAdmission: 1 of 2 requests failed for lack of memory;" in words
    assert "GPUAdmission answered 1.00 x" in words


def test_where_memory_does_not_bind_the_verdict_says_so() -> None:
    same = [trial(label, "ok", "ok") for label in ("unprotected", "Semaphore(9)", "GPUAdmission")]
    words = said(report(*same, clients=8))
    assert "At 8 clients memory does not bind: GPUAdmission answered 1.00 x" in words
    assert words.count("which is equal") == 2


def test_a_replay_that_was_cut_short_is_mentioned() -> None:
    cut = trial("Semaphore(2)", "ok", "unfinished")
    words = said(report(trial("unprotected", "ok"), cut, trial("GPUAdmission", "ok")))
    assert "Time ran out for Semaphore(2): 1 of 2 requests were cut off" in words
    assert "Time ran out" not in said(usual())


def test_a_budget_that_is_told_nothing_is_judged_from_the_fortieth_answer_on() -> None:
    all_well: list[Outcome] = ["ok"] * 50
    slots = trial("Semaphore(2)", *all_well, cpu=50.0)
    slow = [msgspec.structs.replace(a, outcome="failed") for a in slots.run.answers[:40]]
    nothing = Trial("GPUAdmission()", Run([*slow, *slots.run.answers[40:]], slots.run.samples), 100)
    words = said(usual(trials={"semaphore": slots, "auto": nothing}))
    assert "GPUAdmission() answered 0.20 x the requests of Semaphore(2)" in words
    assert "From the 40th answer on: GPUAdmission() answered 1.00 x the requests of Semaphore(2)" in words


def test_several_workers_are_compared_and_their_share_of_the_requests_is_told() -> None:
    divided, one = (
        trial("2 workers, half each", "ok", "ok", cpu=3.0),
        trial("2 workers, one budget", "ok", "ok"),
    )
    told = [msgspec.structs.replace(a, worker=w) for a, w in zip(one.run.answers, "ab", strict=True)]
    one = msgspec.structs.replace(one, run=Run(told, one.run.samples))
    words = said(usual(trials={"divided": divided, "one budget": one}))
    assert "2 workers, one budget answered 1.50 x the requests of 2 workers, half each" in words
    assert "2 workers, one budget: the workers that the kernel gave connections to answered 1, 1" in words
    assert words.count("gave connections") == 1
    assert "memory does not bind" not in words


def test_threads_are_said_to_gain_safety_only() -> None:
    assert "bytes buy safety here, not throughput" in said(usual(engine="threads"))
    assert "bytes buy safety" not in said(usual())


def test_weights_that_fit_the_cache_are_mentioned() -> None:
    assert "batching pays less" in said(usual(weights=150))
    assert "batching pays less" not in said(usual())
    assert "last-level cache" not in text(usual(cache_level=None))


def test_a_semaphore_that_answered_nothing_is_no_divisor() -> None:
    words = said(
        report(trial("unprotected", "ok"), trial("Semaphore(1)", "failed"), trial("GPUAdmission", "ok"))
    )
    assert "Semaphore(1) answered nothing" in words


class Reader(HTMLParser):
    """Tags opened and closed, texts, and what is loaded from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.outside += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "line", "polygon"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.cells.append(data)


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(re.sub(r"<(line|polygon)([^>]*)/>", r"<\1\2>", html))
    reader.close()
    return reader


def test_the_page_is_whole_and_loads_nothing() -> None:
    reader = read(page(usual()))
    assert reader.open == []
    assert reader.outside == []
    assert "3 of 3" in reader.cells
    assert "90%" in reader.cells


def test_the_page_says_what_the_terminal_says_and_draws_each_trial() -> None:
    html = page(usual())
    assert html.count("<svg") == 3
    assert html.count('class="use"') == 3
    assert html.count('class="lost"') == 2
    assert "GPUAdmission answered 2.00 x the requests" in html


def test_what_came_from_elsewhere_is_escaped_in_the_page() -> None:
    hostile = "<script>alert('1')</script>&"
    made = usual(device=hostile, wall=hostile)
    lost = msgspec.structs.replace(answers("out_of_memory")[0], detail=hostile)
    plain = Trial(hostile, Run([lost], []), 100)
    html = page(msgspec.structs.replace(made, trials={**made.trials, "unprotected": plain}))
    assert "<script" not in html
    assert html.count("&lt;script&gt;alert(&#x27;1&#x27;)&lt;/script&gt;&amp;") >= 5


def test_a_trial_without_samples_has_a_picture_without_an_area() -> None:
    empty = Trial("empty", Run(answers("ok"), []), 100)
    assert page(report(empty, empty, empty)).count('class="use"') == 0


def test_on_a_terminal_the_same_cells_are_drawn() -> None:
    out = io.StringIO()
    show(usual(), Terminal(out, rich=True))
    drawn = out.getvalue()
    assert "\x1b[" in drawn
    for word in ("unprotected", "GPUAdmission", "answered 2.00 x"):
        assert word in drawn
