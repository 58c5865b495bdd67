"""The command line as a whole: finding a subcommand, and importing no other."""

from __future__ import annotations

import subprocess
import sys
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
