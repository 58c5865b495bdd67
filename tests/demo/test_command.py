"""The demo's command line: its options, its progress, its exit status."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from gpu_admission.demo import command, rounds
from gpu_admission.demo.command import main
from gpu_admission.demo.load import Answer
from gpu_admission.demo.plan import Plan
from gpu_admission.demo.process import ServerError
from gpu_admission.demo.report import Report
from gpu_admission.demo.rounds import Say, Watch
from gpu_admission.demo.trace import Ask
from gpu_admission.planning.terminal import Stages, Terminal
from tests.demo.test_report import usual


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plans that would have been run; nothing is."""
    seen: list[Plan] = []

    def run(plan: Plan, say: Say, watch: Watch) -> Report:
        seen.append(plan)
        say("measuring")
        return usual()

    monkeypatch.setattr(rounds, "run", run)
    monkeypatch.setattr(command, "NEEDS", ())
    return seen


def test_what_is_not_said_has_the_plans_defaults(plans: list[Plan]) -> None:
    assert main([]) == 0
    assert plans == [Plan()]


def test_options_reach_the_plan(plans: list[Plan]) -> None:
    main(["--clients=8", "--requests=9", "--engine=threads", "--wall=5MiB", "--seconds=60"])
    assert plans == [Plan(clients=8, requests=9, engine="threads", room=5 * 2**20, seconds=60)]


def test_rounds_are_chosen_by_name(plans: list[Plan]) -> None:
    main(["--rounds", "bytes, semaphore,bytes"])
    main(["--workers=8"])
    main(["--rounds=workers"])
    assert [plan.rounds for plan in plans] == [
        ("bytes", "semaphore"),
        ("unprotected", "semaphore", "bytes", "workers"),
        ("workers",),
    ]
    assert [plan.workers for plan in plans] == [4, 8, 4]


def test_the_report_goes_to_stdout_and_the_rest_to_stderr(
    plans: list[Plan], capsys: pytest.CaptureFixture[str]
) -> None:
    main([])
    shown = capsys.readouterr()
    assert "GPUAdmission answered 2.00 x" in shown.out
    assert shown.err == "up to 166 s; --seconds sets another limit\nmeasuring\n"


def test_the_page_is_written_where_it_was_asked_for(plans: list[Plan], tmp_path: Path) -> None:
    assert main(["--html", str(tmp_path / "report.html")]) == 0
    assert "GPUAdmission answered 2.00 x" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--clients", "0"], "--clients: must be a whole number from 1"),
        (["--requests", "many"], "--requests: must be a whole number"),
        (["--seconds", "²"], "--seconds: must be a whole number"),
        (["--wall", "big"], "--wall: size='big' is not a size"),
        (["--html", "/nope/x.html"], "--html: there is no folder /nope"),
        (["--engine", "vllm"], "--engine: invalid choice: 'vllm'"),
        (["--rounds", "bytes,all"], "--rounds: there is no round 'all', only unprotected, semaphore"),
        (["--workers", "1"], "--workers: must be from 2 to 64, not 1"),
        (["--fast"], "unrecognized arguments: --fast"),
    ],
)
def test_wrong_options_are_refused_by_name(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        main(arguments)
    assert refused.value.code == 2
    assert said in capsys.readouterr().err


def test_missing_libraries_are_named_with_their_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "NEEDS", ("argparse", "no_such_library"))
    assert main([]) == 1
    assert "needs no_such_library: pip install 'gpu-admission[demo]'" in capsys.readouterr().err


@pytest.mark.parametrize("error", [ServerError("it ended"), ValueError("it ended"), RuntimeError("it ended")])
def test_what_fails_is_said_in_one_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(plan: Plan, say: Say, watch: Watch) -> Report:
        raise error

    monkeypatch.setattr(rounds, "run", run)
    monkeypatch.setattr(command, "NEEDS", ())
    assert main([]) == 1
    assert capsys.readouterr().err.splitlines()[1:] == ["gpu-admission demo: it ended"]


def test_an_interrupt_ends_it_as_shells_expect(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(plan: Plan, say: Say, watch: Watch) -> Report:
        raise KeyboardInterrupt

    monkeypatch.setattr(rounds, "run", run)
    monkeypatch.setattr(command, "NEEDS", ())
    assert main([]) == 130


def answers() -> list[Answer]:
    return [Answer(Ask(1, 1), "out_of_memory" if n == 3 else "ok", 0.0, 1.0) for n in range(20)]


def test_progress_is_a_line_for_each_tenth_in_a_log() -> None:
    log = io.StringIO()
    with Stages(Terminal(log)) as stages:
        progress = command._watch(stages, "mine", 20)
        for answer in answers():
            progress(answer)
    lines = log.getvalue().splitlines()
    assert len(lines) == 10
    assert lines[0] == "mine: 2/20 answered, 0 out of memory"
    assert lines[-1] == "mine: 20/20 answered, 1 out of memory"


def test_progress_is_drawn_on_a_terminal() -> None:
    log = io.StringIO()
    with Stages(Terminal(log, rich=True)) as stages:
        progress = command._watch(stages, "mine", 20)
        for answer in answers():
            progress(answer)
    assert "answered, 1 out of memory" in log.getvalue()
    assert "\x1b[" in log.getvalue()
