"""``gpu-admission hold``: any command on a shared budget, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_admission import cli
from gpu_admission.budget.ticket import GRANTED, Ticket
from gpu_admission.serving.hold_command import Passing, _terms_in_force, waits
from gpu_admission.shared.command import Onlooker
from gpu_admission.shared.folder import FolderLog
from gpu_admission.shared.ledger import SharedLedger
from gpu_admission.shared.memory import MemoryHub, MemoryLog
from gpu_admission.shared.operations import Terms
from tests.shared.redisserver import Server, needs_server
from tests.waiting import LONGEST, free_port, until


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "gpu0"


@pytest.fixture
def server(folder: Path) -> Iterator[SharedLedger]:
    """Another process of the budget, of 100 bytes."""
    shared = SharedLedger(FolderLog(folder), Terms((100,), max_waiting=7))
    shared.start()
    yield shared
    shared.stop()


def hold(*arguments: object) -> int:
    return cli.main(["hold", *map(str, arguments)])


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "gpu_admission.cli", "hold", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def until_held(server: SharedLedger, size: int) -> None:
    def is_held() -> bool:
        server.catch_up()
        return server.ledger.in_use == size

    until(is_held)


def test_the_status_is_that_of_the_command_and_the_bytes_come_back(
    folder: Path, server: SharedLedger
) -> None:
    assert hold(60, folder, "--", sys.executable, "-c", "raise SystemExit(7)") == 7
    server.catch_up()
    assert server.ledger.in_use == 0
    assert server.ledger.lanes[0].max_waiting == 7  # the settings in force are as they were


def test_the_budget_may_be_named_by_the_environment(
    folder: Path, server: SharedLedger, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hold(60, "--", "true") == 125
    assert "name the folder or redis:// address of the budget, or set GPU_ADMISSION_SHARED" in (
        capsys.readouterr().err
    )
    monkeypatch.setenv("GPU_ADMISSION_SHARED", str(folder))
    assert hold(60, "--", sys.executable, "-c", "raise SystemExit(7)") == 7
    assert hold(60, folder, sys.executable, "-c", "raise SystemExit(8)") == 8


@pytest.mark.parametrize("device", [0, 1])
def test_the_command_is_told_of_which_device_it_holds_bytes(tmp_path: Path, device: int) -> None:
    """By its place, as the budget knows it. The program may take its other settings from the environment."""
    shared = SharedLedger(FolderLog(tmp_path / "gpu0"), Terms((100, 100)))
    shared.start()
    held = [Ticket(60) for _ in range(device)]
    for ticket in held:
        shared.ask(ticket)
    assert [ticket.device for ticket in held] == [0] * device
    told = "import os; from gpu_admission import Admission; Admission.from_env(capacity=1, estimator=1)"
    code = f"{told}; raise SystemExit(7 + int(os.environ['GPU_ADMISSION_HELD_DEVICE']))"
    assert hold(60, tmp_path / "gpu0", "--", sys.executable, "-c", code) == 7 + device
    for ticket in held:
        shared.release(ticket)
    shared.stop()


def test_it_waits_for_the_bytes(folder: Path, server: SharedLedger) -> None:
    first = Ticket(60)
    server.ask(first)
    holding = start(60, folder, "--", sys.executable, "-c", "print('ran')")

    def waits() -> int:
        server.catch_up()
        return server.ledger.waiting

    until(waits)
    assert holding.poll() is None
    server.release(first)
    assert holding.communicate(timeout=LONGEST)[0] == "ran\n"


def test_signals_reach_the_command(folder: Path, server: SharedLedger) -> None:
    code = "import signal, sys; signal.signal(15, lambda *_: sys.exit(3)); print('up', flush=True)"
    with start(60, folder, "--", sys.executable, "-c", f"{code}; signal.pause()") as holding:
        assert holding.stdout is not None
        assert holding.stdout.readline() == "up\n"
        until_held(server, 60)
        holding.send_signal(signal.SIGTERM)
        assert holding.wait(LONGEST) == 3
    until_held(server, 0)


TAKES = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
open(sys.argv[1], "w").close()
sys.exit(signal.sigwait({signal.SIGINT, signal.SIGTERM}))
"""


@pytest.mark.parametrize(("at_a_terminal", "first"), [(True, signal.SIGTERM), (False, signal.SIGINT)])
def test_an_interrupt_from_the_keyboard_is_not_passed_on(
    folder: Path,
    server: SharedLedger,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at_a_terminal: bool,
    first: signal.Signals,
) -> None:
    """The terminal sends it to the command itself: passed on, it would come twice."""
    monkeypatch.setattr(os, "isatty", lambda fd: at_a_terminal)
    is_up, before = tmp_path / "up", signal.getsignal(signal.SIGTERM)

    def strike() -> None:
        until(lambda: is_up.exists() and signal.getsignal(signal.SIGTERM) is not before)
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)

    striking = threading.Thread(target=strike)
    striking.start()
    assert hold(60, folder, "--", sys.executable, "-c", TAKES, is_up) == first
    striking.join()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT])
def test_a_signal_that_ends_the_wait_leaves_the_queue(
    folder: Path, server: SharedLedger, number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    everything = Ticket(100)
    server.ask(everything)
    before = signal.getsignal(number)
    looks = iter((signal.SIGUSR1, number))  # the first says nothing to one that waits

    def send(event: threading.Event, seconds: float | None = None) -> bool:
        os.kill(os.getpid(), next(looks))
        return False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpu_admission.serving.hold_command.threading", Threading(send))
        assert hold(60, folder, "--", "true") == 128 + number
    assert f"ended by {number.name} while it waited for 60 B" in capsys.readouterr().err
    assert signal.getsignal(number) is before
    server.catch_up()
    assert (server.ledger.waiting, server.ledger.in_use) == (0, 100)
    server.release(everything)


class Threading:
    """``threading`` with an ``Event`` whose ``wait`` is ``wait``."""

    def __init__(self, wait: Callable[..., bool]) -> None:
        self.Event = type("Event", (threading.Event,), {"wait": wait})


def test_a_signal_that_came_while_the_command_was_started_reaches_it() -> None:
    with Passing() as passing:
        os.kill(os.getpid(), signal.SIGTERM)
        child = subprocess.Popen(["sleep", "60"])
        passing.to(child)
        assert child.wait(LONGEST) == -signal.SIGTERM


def test_what_nohup_lets_be_ignored_is_ignored(folder: Path, server: SharedLedger) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Passing() as passing:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not passing.ended_by
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("seconds", ["nan", "-1"])
def test_a_timeout_that_is_no_time_is_refused(
    folder: Path, seconds: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        hold(f"--timeout={seconds}", 60, folder, "--", "true")
    assert f"--timeout: {seconds} is not 0 seconds or more" in capsys.readouterr().err


def test_a_command_that_a_signal_ended_is_told_as_shells_do(folder: Path, server: SharedLedger) -> None:
    assert hold(1, folder, "--", sys.executable, "-c", "import os; os.kill(os.getpid(), 9)") == 128 + 9


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (("--timeout", "0", "101", "FOLDER", "--", "true"), 125, "the largest request that fits is 100 B"),
        (("1", "FOLDER", "--", "no-such-command-here"), 127, "no-such-command-here"),
        (("1", "FOLDER", "--", "/"), 126, "Permission denied: '/'"),
        (("1", "FOLDER"), 125, "say what to run"),
        (("much", "FOLDER", "--", "true"), 125, "size"),
        (("1", "gpu0", "--", "true"), 125, "must be an absolute path"),
    ],
)
def test_what_can_not_be_run_says_why(
    folder: Path,
    server: SharedLedger,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    status: int,
    sentence: str,
) -> None:
    assert hold(*(str(folder) if each == "FOLDER" else each for each in arguments)) == status
    assert sentence in capsys.readouterr().err


def test_it_gives_up_at_its_timeout(
    folder: Path, server: SharedLedger, capsys: pytest.CaptureFixture[str]
) -> None:
    held = Ticket(60)
    server.ask(held)
    assert held.state is GRANTED
    assert hold("--timeout", "0.05", 60, folder, "--", "true") == 125
    assert "--timeout=0.05" in capsys.readouterr().err
    server.release(held)


def test_a_budget_that_is_new_needs_a_capacity(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert hold(1, folder, "--", "true") == 125
    assert "give --capacity" in capsys.readouterr().err
    assert not folder.exists(), "a name that was mistyped leaves nothing behind"
    assert hold("--capacity", "100", 1, folder, "--", sys.executable, "-c", "") == 0
    begun = f"gpu-admission hold: a new budget of 100 B begins at {folder}, which no other process uses\n"
    assert capsys.readouterr().err == begun
    assert hold("--capacity", "100", 1, folder, "--", sys.executable, "-c", "") == 0
    assert not capsys.readouterr().err


def test_a_folder_in_which_no_process_has_taken_part_needs_a_capacity_too(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = FolderLog(folder)
    log.start("onlooker", Onlooker(log))
    log.stop()
    assert hold(1, folder, "--", "true") == 125
    assert "give --capacity" in capsys.readouterr().err


def test_the_capacity_for_a_new_budget_is_none_that_overrules_one_that_can_not_be_reached(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert _terms_in_force(f"redis://127.0.0.1:{free_port()}/0?name=gpu0", 100).given() == []
    assert not capsys.readouterr().err


SLEEPS = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"


def test_a_command_that_outlives_its_hold_stays_counted_until_it_ends(
    folder: Path, server: SharedLedger
) -> None:
    holding = start(60, folder, "--", sys.executable, "-c", SLEEPS)
    assert holding.stdout is not None
    command = int(holding.stdout.readline())
    until_held(server, 60)
    holding.kill()
    holding.wait()
    waiting = Ticket(60)
    server.ask(waiting)
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        server.pulse()
        assert server.ledger.in_use == 60
        time.sleep(0.05)
    os.kill(command, signal.SIGKILL)
    until_held(server, 60)
    until(lambda: waiting.state is GRANTED)
    server.release(waiting)
    holding.stdout.close()


@needs_server
def test_over_a_server_a_command_dies_with_its_hold(tmp_path: Path) -> None:
    redis = Server(tmp_path / "redis")
    holding = start("--capacity=100", "60", redis.address, "--", sys.executable, "-c", SLEEPS)
    assert holding.stdout is not None
    command = int(holding.stdout.readline())
    holding.kill()
    holding.wait()
    until(lambda: not is_running(command), what="nobody renews its lease any more, and it runs on")
    holding.stdout.close()
    redis.stop()


@needs_server
def test_over_a_server_too_a_command_that_is_not_there_is_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    redis = Server(tmp_path / "redis")
    assert hold("--capacity=100", 60, redis.address, "--", "no-such-command") == 127
    assert "no-such-command" in capfd.readouterr().err
    assert hold(60, redis.address, "--", sys.executable, "-c", "raise SystemExit(7)") == 7
    redis.stop()


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_options_may_stand_behind_the_budget(folder: Path, server: SharedLedger) -> None:
    """Else they were taken for the command, and it would wait for ever."""
    everything = Ticket(100)
    server.ask(everything)
    assert hold(60, folder, "--timeout", "0", "--", "true") == 125
    server.release(everything)
    assert hold(60, folder, sys.executable, "-c", "raise SystemExit(7)") == 7


def test_while_it_waits_it_says_for_what_and_its_place_in_line(
    folder: Path, server: SharedLedger, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_admission.serving.hold_command._PATIENCE", 0.0)
    held, ahead = Ticket(60), Ticket(50)
    server.ask(held)
    server.ask(ahead)
    assert hold("--timeout", "0.3", 70, folder, "--", "true") == 125
    said, gave_up = capsys.readouterr().err.splitlines()
    assert said == (
        f"gpu-admission hold: waiting for 70 B of the shared budget {folder}: 40 B of 100 B are free, "
        "number 2 of 2 in line"
    )
    assert "--timeout=0.3" in gave_up
    server.release(ahead)
    server.release(held)


def test_while_the_budget_is_away_it_says_that() -> None:
    log = MemoryLog(MemoryHub())
    shared = SharedLedger(log, Terms((100,)))
    shared.start(pulse=False)
    log.cut()
    assert waits(shared, Ticket(1)) == "the memory log was cut off: waiting for it"
