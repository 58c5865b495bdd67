"""``gpu-admission replay`` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_admission import cli
from gpu_admission.planning import replay_command
from gpu_admission.planning.disciplines import disciplines

DATA = Path(__file__).parent / "data"
CODE = str(DATA / "azure2023_code_head.csv")


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["replay", *arguments]) == 0
    return capsys.readouterr().out


def rows(out: str) -> tuple[list[str], list[str]]:
    """The cells of the default's row and of the what-if's."""
    first, other, *_ = (
        line.split() for line in out.splitlines() if line.startswith(("default  ", "capacity="))
    )
    return first, other


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["replay", *arguments]) == 2
    return capsys.readouterr().err


def test_every_discipline_has_a_row_and_says_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, CODE)
    for name, discipline in disciplines().items():
        assert f"\n{name} " in out
        assert f"{name}: {discipline.says}" in out
    assert "1,200 requests" in out
    assert "one of 8 tenants sends half" in out


def test_the_arrivals_can_be_stretched_to_a_load(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, CODE, "--load", "1.2", "--only", "fifo")
    assert "load 1.20" in out
    assert "tenants" not in out


def test_what_if_adds_a_row_with_other_settings(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, CODE, "--load", "2", "--only", "default", "--what-if", "capacity=40GiB")
    row, other = rows(out)
    assert other[0] == "capacity=40GiB"
    assert float(other[1]) > float(row[1])


def test_those_larger_than_the_card_are_left_out_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, str(DATA / "mooncake_conversation_head.csv"), "--only", "default")
    assert "771 requests" in out
    assert "29 more are larger than all the bytes there are" in out


def test_another_card_and_another_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert "64.04 GiB for requests" in printed(capsys, CODE, "--card", "80GiB", "--only", "fifo")
    out = printed(capsys, CODE, "--weights", "8GiB", "--kv-bytes-per-token", "1000", "--only", "fifo")
    assert "15.00 GiB for requests" in out
    assert "10.00 GiB for requests" in printed(capsys, CODE, "--capacity", "10GiB", "--only", "fifo")


def test_estimates_can_be_made_wrong_and_a_margin_kept(capsys: pytest.CaptureFixture[str]) -> None:
    base = (CODE, "--load", "1.2", "--only", "default", "--error", "0.1")
    wrong, kept = (printed(capsys, *base, *more) for more in ([], ["--margin", "0.1"]))
    assert " 0.0 ‰" not in wrong
    assert " 0.0 ‰" in kept


def test_large_comparisons_run_in_several_processes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = printed(capsys, CODE, "--only", "default,fifo")
    monkeypatch.setattr(replay_command, "_WORTH_PROCESSES", 1)
    assert printed(capsys, CODE, "--only", "default,fifo") == alone


def test_a_decision_log_is_replayed_on_the_capacity_that_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "decisions.jsonl"
    line = {"decision": "admitted", "route": "*", "lane": "default", "bytes": 60, "held": 5.0}
    path.write_text("".join(json.dumps(line | {"arrival": 1e9 + n}) + "\n" for n in range(20)))
    assert "give --capacity" in refused(capsys, str(path))
    out = printed(capsys, str(path), "--capacity", "100", "--only", "default", "--what-if", "capacity=600")
    row, other = rows(out)
    assert float(row[1]) < 100
    assert float(other[1]) == 100


def test_a_torn_last_line_is_left_out_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "decisions.jsonl"
    line = {"decision": "admitted", "route": "*", "lane": "default", "bytes": 60, "held": 5.0}
    whole = "".join(json.dumps(line | {"arrival": 1e9 + n}) + "\n" for n in range(20))
    path.write_text(whole + '{"decision": "admi')
    out = printed(capsys, str(path), "--capacity", "100", "--only", "default")
    assert "20 requests" in out
    assert "the last line is torn" in out
    path.write_text('{"decision": "admi\n' + whole)
    assert "line 1: not a decision" in refused(capsys, str(path), "--capacity", "100")


def test_a_timeout_of_0_lets_none_wait(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, CODE, "--load", "2", "--only", "default", "--timeout", "0")
    assert "timeout 0 s" in out
    row = next(line.split() for line in out.splitlines() if line.startswith("default  "))
    assert float(row[1]) < 100
    assert row[7] == "0.0"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["none.csv"], "none.csv"),
        ([CODE, "--only", "lifo"], "there is no row 'lifo'"),
        ([CODE, "--what-if", "capacity"], "write NAME=VALUE"),
        ([CODE, "--weights", "24GiB"], "leave no room"),
        ([CODE, "--capacity", "1"], "no request of"),
    ],
)
def test_what_cannot_be_played_is_said_in_a_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sentence in refused(capsys, *arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--load", "0"],
        ["--load", "much"],
        ["--margin", "1"],
        ["--repeat", "0"],
        ["--capacity", "0"],
        ["--capacity", "much"],
        ["--card", "12GiB"],
    ],
)
def test_options_are_checked(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["replay", CODE, *arguments])
    assert ended.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_an_interrupt_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(replay_command, "_play", interrupted)
    assert cli.main(["replay", CODE]) == 130
