"""The command line as a whole: finding a subcommand, and importing no other."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from importlib import import_module
from types import SimpleNamespace

import pytest

from gpu_admission import cli


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    for name, (_, summary) in cli.COMMANDS.items():
        assert f"  {name}" in shown
        assert summary in shown


@pytest.mark.parametrize("arguments", [[], ["paint"]])
def test_an_unknown_command_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


def test_a_command_gets_all_that_follows_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "some_command", SimpleNamespace(main=len))
    monkeypatch.setattr(cli, "COMMANDS", {"count": ("some_command", "counts")})
    assert cli.main(["count", "--help", "x", "--", "-y"]) == 4


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_each_command_tells_its_own_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([name, "--help"])
    assert ended.value.code == 0
    assert f"usage: gpu-admission {name}" in capsys.readouterr().out


def test_help_loads_no_heavy_library() -> None:
    code = (
        "import sys\n"
        "from gpu_admission.cli import main\n"
        "try:\n    main(['demo', '--help'])\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('torch', 'uvicorn', 'httpx', 'numpy') if name in sys.modules])"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("arguments", [["plan", "--model", "x"], ["calibrate", "a:b"], ["replay", "x.csv"]])
def test_a_reader_that_has_gone_is_no_failure_of_a_command(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = import_module(cli.COMMANDS[arguments[0]][0])

    def gone(*_: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(command, "Terminal", gone)
    with pytest.raises(BrokenPipeError):
        command.main(arguments[1:])
    assert not capsys.readouterr().err


_MANY_LINES = """
import sys
from types import SimpleNamespace
from gpu_admission import cli

def many(arguments):
    for number in range(100_000):
        print(number)

sys.modules["some_command"] = SimpleNamespace(main=many)
cli.COMMANDS = {"count": ("some_command", "counts")}
sys.exit(cli.main(["count"]))
"""


def test_a_reader_that_has_seen_enough_is_no_failure() -> None:
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(_MANY_LINES)} | head -n 1"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert re.fullmatch(r"gpu-admission \d+\.\d+.*\n", capsys.readouterr().out)


def test_the_package_is_run_as_the_command_is() -> None:
    child = subprocess.run(
        [sys.executable, "-m", "gpu_admission", "replay", "/nope.csv"], capture_output=True, text=True
    )
    assert child.returncode == 2
    assert "gpu-admission replay: [Errno 2] No such file or directory: '/nope.csv'" in child.stderr


@pytest.mark.parametrize("command", [["demo"], ["plan", "--model", "x"], ["calibrate", "a:b"]])
def test_a_file_that_can_not_be_written_is_refused_before_the_run(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    option = "--out" if command[0] == "calibrate" else "--html"
    with pytest.raises(SystemExit) as ended:
        cli.main([*command, option, "/nope/x.html"])
    assert ended.value.code == 2
    assert f"{option}: there is no folder /nope" in capsys.readouterr().err
