"""``gpu-admission budget``: an operator looks into a shared budget, and steps in."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_admission import cli
from gpu_admission.budget.ticket import GRANTED, REFUSED, Ticket
from gpu_admission.shared.command import Onlooker
from gpu_admission.shared.folder import FolderLog
from gpu_admission.shared.ledger import SharedLedger
from gpu_admission.shared.logfile import LogFile
from gpu_admission.shared.memory import MemoryHub, MemoryLog
from gpu_admission.shared.operations import Terms
from gpu_admission.shared.process import host_name
from gpu_admission.types import MemberSnapshot


def budget(*arguments: str | Path) -> int:
    return cli.main(["budget", *map(str, arguments)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "gpu0"


@pytest.fixture
def shared(folder: Path) -> Iterator[SharedLedger]:
    shared = SharedLedger(FolderLog(folder), Terms((10 << 30,)), name="worker")
    shared.start(pulse=False)
    yield shared
    for ticket in shared._own:
        shared.release(ticket)
    shared.stop()


def ask(shared: SharedLedger, size: int) -> Ticket:
    ticket = Ticket(size)
    shared.ask(ticket)
    return ticket


def test_a_log_that_does_not_see_deaths_knows_none_that_are_gone() -> None:
    onlooker = Onlooker(MemoryLog(MemoryHub(knows_deaths=False)))
    assert onlooker.gone() == set()
    assert onlooker.summary() == "no process has taken part since this budget began"


def test_show_says_who_holds_what(
    folder: Path, shared: SharedLedger, capsys: pytest.CaptureFixture[str]
) -> None:
    ticket = ask(shared, 6 << 30)
    assert budget("show", folder) == 0
    said = capsys.readouterr().out
    assert "6.00 GiB of 10.00 GiB in use by 1, 0 waiting" in said
    assert re.search(rf"worker\.1 +{os.getpid()} .* 6\.00 GiB +1 +0 ", said)
    shared.release(ticket)


def test_show_tells_programs_the_same_in_json(
    folder: Path, shared: SharedLedger, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(shared, 6 << 30)
    assert budget("show", "--json", folder) == 0
    said = json.loads(capsys.readouterr().out)
    (member,) = said.pop("members")
    assert said == {
        "shared": str(folder),
        "capacity": 10 << 30,
        "in_use": 6 << 30,
        "running": 1,
        "waiting": 0,
        "waiting_bytes": 0,
        "draining": False,
        "settles": None,
        "devices": [{"capacity": 10 << 30, "in_use": 6 << 30, "ceiling": 10 << 30}],
    }
    assert (member["name"], member["pid"], member["bytes"]) == ("worker.1", os.getpid(), 6 << 30)
    assert (member["state"], member["is_dead"], member["running"], member["waiting"]) == (
        "alive",
        False,
        1,
        0,
    )
    assert {*member, "is_self"} == {*MemberSnapshot.__struct_fields__, "state"}, "the names of a snapshot"


@pytest.mark.parametrize("action", [("show",), ("drain",), ("drain", "--undo"), ("evict", "worker.1")])
def test_a_folder_that_no_process_has_used_is_said_and_left_as_it_is(
    folder: Path, action: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    folder.mkdir(mode=0o700)
    assert budget(*action, folder) == 1
    assert f"no process has used the budget {folder} yet" in capsys.readouterr().err
    assert not list(folder.iterdir())


def test_the_budget_may_be_named_by_the_environment(
    shared: SharedLedger,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert budget("drain") == 1
    assert "or set GPU_ADMISSION_SHARED" in capsys.readouterr().err
    monkeypatch.setenv("GPU_ADMISSION_SHARED", str(folder))
    assert budget("drain") == 0
    assert f"{folder} admits nothing any more" in capsys.readouterr().out
    assert budget("evict", "nobody") == 1
    assert "has no member 'nobody'" in capsys.readouterr().err


def test_the_columns_of_show_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        budget("show", "--help")
    said = " ".join(capsys.readouterr().out.split())
    assert '"silent" how long ago it was last heard from' in said
    assert "In a folder, silence of any length is normal" in said


def test_drain_admits_nothing_until_it_is_undone(
    folder: Path, shared: SharedLedger, capsys: pytest.CaptureFixture[str]
) -> None:
    assert budget("drain", folder) == 0
    assert "admits nothing any more, in any process; --undo lets it admit again" in capsys.readouterr().out
    shared.pulse()
    assert ask(shared, 1).state is REFUSED
    assert budget("show", folder) == 0
    assert ", drained" in capsys.readouterr().out
    assert budget("drain", "--undo", folder) == 0
    shared.pulse()
    assert ask(shared, 1).state is GRANTED


def test_evict_gives_a_stuck_process_up_and_a_living_one_claims_what_runs(
    folder: Path, shared: SharedLedger, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(shared, 6 << 30).started = True
    assert budget("evict", "worker.1", folder) == 0
    assert "worker.1 is out: its bytes go to others after 5 s." in capsys.readouterr().out
    budget("show", folder)
    assert "declared dead" in capsys.readouterr().out
    shared.pulse()
    assert [view.name for view in shared.members()] == ["worker.2"]
    assert shared.ledger.in_use == 6 << 30


def test_evict_of_a_stranger_names_the_members(
    folder: Path, shared: SharedLedger, capsys: pytest.CaptureFixture[str]
) -> None:
    assert budget("evict", "nobody", folder) == 1
    assert "has no member 'nobody' that counts as alive; members are worker.1" in capsys.readouterr().err


def test_evict_by_pid_tells_the_name(
    folder: Path, shared: SharedLedger, capsys: pytest.CaptureFixture[str]
) -> None:
    assert budget("evict", str(os.getpid()), folder) == 1
    assert f"{os.getpid()} is the pid of worker.1: write that name" in capsys.readouterr().err
    assert shared.replica.members.living


def test_evict_with_its_arguments_the_other_way_round_says_so(
    folder: Path, shared: SharedLedger, capsys: pytest.CaptureFixture[str]
) -> None:
    assert budget("evict", folder, "worker.1") == 1
    assert "the member comes first: gpu-admission budget evict MEMBER SHARED" in capsys.readouterr().err


def test_evict_of_one_that_is_out_already_says_when_its_bytes_come(
    folder: Path, shared: SharedLedger, capsys: pytest.CaptureFixture[str]
) -> None:
    assert budget("evict", "worker.1", folder) == 0
    assert budget("evict", "worker.1", folder) == 1
    assert "worker.1 was declared dead already" in capsys.readouterr().err


def test_a_budget_that_cannot_be_reached_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert budget("show", "relative") == 1
    assert "must be an absolute path" in capsys.readouterr().err


@pytest.mark.parametrize("action", ["show", "drain"])
def test_a_folder_that_is_not_there_is_not_made(
    folder: Path, action: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name spelled wrong would look like a budget that nobody uses."""
    assert budget(action, folder) == 1
    assert "there is no folder" in capsys.readouterr().err
    assert not folder.exists()


@pytest.mark.parametrize("action", [("show",), ("drain",), ("evict", "worker.1")])
def test_a_log_that_goes_away_meanwhile_is_said(
    folder: Path,
    shared: SharedLedger,
    action: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gpu_admission.shared.command._WITHIN", 0.05)
    real = FolderLog.start

    def start(self: FolderLog, process: str, listener: Onlooker) -> None:
        real(self, process, listener)
        if action == ("show",):
            listener.went_away("the disk is gone")
        monkeypatch.setattr(FolderLog, "append", lambda self, data: None)

    monkeypatch.setattr(FolderLog, "start", start)
    assert budget(*action, folder) == 1
    said = capsys.readouterr().err
    assert ("the disk is gone" if action == ("show",) else "took the entry, and it did not come back") in said


def test_an_onlooker_begins_with_the_snapshot_and_can_write_one(folder: Path) -> None:
    shared = SharedLedger(FolderLog(folder, long=500), Terms((100,)))
    shared.start(pulse=False)
    held = ask(shared, 60)
    for _ in range(20):
        shared.release(ask(shared, 1))
        shared.pulse()
    log = FolderLog(folder)
    onlooker = Onlooker(log)
    log.start("onlooker", onlooker)
    assert [member.bytes for member in onlooker.members()] == [60]
    again = Onlooker(log)
    again.restarted(onlooker.snapshot())
    assert again.replica.ledger is not None
    assert again.replica.ledger.in_use == 60
    log.stop()
    shared.release(held)
    shared.stop()


def test_show_counts_to_now_where_nobody_has_said_anything_since(
    folder: Path, shared: SharedLedger, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = LogFile.now
    monkeypatch.setattr(LogFile, "now", lambda self: now(self) + 12 * 10**9)
    assert budget("show", folder) == 0
    assert re.search(r"worker\.1 .* 12 s +12 s +alive", capsys.readouterr().out)


def test_show_says_who_has_died_before_any_process_has_noticed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dead = SharedLedger(FolderLog(folder), Terms((10 << 30,)), name="worker")
    dead.start(pulse=False)
    ask(dead, 3 << 30)
    dead.log._presence.abandon()  # type: ignore[attr-defined]
    assert budget("show", folder) == 0
    assert re.search(r"worker\.1 .* 3\.00 GiB .* dead$", capsys.readouterr().out.strip())


# what the other processes log


@pytest.fixture
def other(folder: Path, shared: SharedLedger, caplog: pytest.LogCaptureFixture) -> Iterator[SharedLedger]:
    """Another process of the budget, whose log alone is seen in what it reads."""
    other = SharedLedger(FolderLog(folder), Terms((10 << 30,)), name="other")
    other.start(pulse=False)
    caplog.clear()
    yield other
    other.stop()


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    said = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return said


def test_an_eviction_is_one_warning_in_the_others_with_pid_and_host(
    folder: Path, other: SharedLedger, caplog: pytest.LogCaptureFixture
) -> None:
    assert budget("evict", "worker.1", folder) == 0
    other.pulse()
    (said,) = logged(caplog)
    assert (
        f"worker.1 (pid {os.getpid()} on {host_name()}, 0 leases) is out of the shared budget {folder}"
        in said
    )
    assert "silent for longer than lease_ttl, or was evicted" in said
    other.pulse()
    assert not logged(caplog)


def test_a_death_is_one_warning_in_the_others_and_leaving_is_none(
    folder: Path, other: SharedLedger, caplog: pytest.LogCaptureFixture
) -> None:
    third, fourth = (
        SharedLedger(FolderLog(folder), Terms((10 << 30,)), name=name) for name in ("third", "fourth")
    )
    third.start(pulse=False)
    fourth.start(pulse=False)
    ask(third, 1)
    fourth.stop()
    third.log._presence.abandon()  # type: ignore[attr-defined]
    other.pulse()
    (said,) = logged(caplog)
    assert re.match(
        r"third\.1 \(pid \d+ on .*, 1 leases\) is out .*: its process has ended without leaving", said
    )


def test_a_drain_is_one_warning_in_each_process_also_in_one_that_comes_later(
    folder: Path, other: SharedLedger, caplog: pytest.LogCaptureFixture
) -> None:
    assert budget("drain", folder) == 0
    other.pulse()
    assert [f"the shared budget {folder} is drained" in said for said in logged(caplog)] == [True]
    late = SharedLedger(FolderLog(folder), Terms((10 << 30,)), name="late")
    late.start(pulse=False)
    assert [f"the shared budget {folder} is drained" in said for said in logged(caplog)] == [True]
    assert budget("drain", "--undo", folder) == 0
    other.pulse()
    assert logged(caplog) == [f"the shared budget {folder} admits again"]
    late.stop()


def test_a_resize_is_one_warning_in_the_others_if_it_changes_anything(
    folder: Path, shared: SharedLedger, other: SharedLedger, caplog: pytest.LogCaptureFixture
) -> None:
    shared.resize([6 << 30])
    other.pulse()
    assert logged(caplog) == [
        f"worker.1 (pid {os.getpid()} on {host_name()}) has resized the shared budget {folder} for all: "
        "capacity=6.00 GiB now, 10.00 GiB before"
    ]
    shared.resize([6 << 30])
    other.pulse()
    assert not logged(caplog)
    late = SharedLedger(FolderLog(folder), Terms((6 << 30,)), name="late")
    late.start(pulse=False)
    assert not [said for said in logged(caplog) if "resized" in said], "only what happens while it takes part"
    late.stop()
