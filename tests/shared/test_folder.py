"""A folder of this host as the log, with real files, locks and sockets."""

from __future__ import annotations

import errno
import fcntl
import gc
import math
import os
import shutil
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_admission.budget.ticket import ENDED, GRANTED, NEW, REFUSED, WAITING, Ticket
from gpu_admission.runtime import fork
from gpu_admission.shared.dump import dump
from gpu_admission.shared.folder import FolderLog, _boot_id, _sockets_in, file_system, prepare_folder
from gpu_admission.shared.frames import HEAD_SIZE, Frames, Head, frame, snapshot_frame
from gpu_admission.shared.ledger import SharedLedger
from gpu_admission.shared.logfile import LogFile
from gpu_admission.shared.operations import Open, Terms, Why, encode
from gpu_admission.shared.presence import Presence
from gpu_admission.shared.protocol import Entry, LogAway
from gpu_admission.shared.replica import Replica
from gpu_admission.shared.untold import Untold
from tests.waiting import until, until_async

TERMS = Terms((100,))
pytestmark = pytest.mark.anyio


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "gpu0"


@pytest.fixture
def join(folder: Path) -> Iterator[Callable[..., SharedLedger]]:
    """Makes processes on the folder that never turn by themselves."""
    made: list[SharedLedger] = []

    def make(*, pulse: bool = False, **options: float) -> SharedLedger:
        shared = SharedLedger(FolderLog(folder, **options), TERMS)  # type: ignore[arg-type]
        shared.start(pulse=pulse)
        made.append(shared)
        return shared

    yield make
    for shared in made:
        for ticket in shared._own:
            shared.release(ticket)
        if not shared.has_left:
            shared.stop()


def log_of(folder: Path) -> Path:
    (log,) = folder.glob("log-*")
    return log


def ask(shared: SharedLedger, size: int) -> Ticket:
    ticket = Ticket(size)
    shared.ask(ticket)
    return ticket


def test_two_processes_draw_on_one_budget(join: Callable[..., SharedLedger]) -> None:
    first, second = join(), join()
    held, waiting = ask(first, 70), ask(second, 40)
    assert (held.state, waiting.state) == (GRANTED, WAITING)
    first.release(held)
    assert held.state is ENDED
    second.pulse()
    assert waiting.state is GRANTED


def test_a_waiter_is_woken_by_the_process_that_gives_back(join: Callable[..., SharedLedger]) -> None:
    first, second = join(), join(pulse=True)
    held, waiting = ask(first, 70), ask(second, 40)
    first.release(held)
    until(lambda: waiting.state is GRANTED)


def test_a_wake_up_that_is_lost_delays_a_waiter_and_no_more(
    join: Callable[..., SharedLedger], monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    wait = FolderLog.wait

    def noted(log: FolderLog, seconds: float) -> None:
        pauses.append(seconds)
        wait(log, seconds)

    monkeypatch.setattr(Presence, "wake", lambda self, processes: None)
    monkeypatch.setattr(FolderLog, "wait", noted)
    first, second = join(pulse=True), join(pulse=True)
    held, waiting = Ticket(70), Ticket(40)
    first.ask(held)
    second.ask(waiting)
    assert waiting.state is WAITING
    first.release(held)
    until(lambda: waiting.state is GRANTED)
    assert max(pauses) <= 1.0
    second.release(waiting)


def test_the_folder_and_all_in_it_are_for_the_owner_alone(
    folder: Path, join: Callable[..., SharedLedger]
) -> None:
    join()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    names = {path.suffix or path.name for path in folder.iterdir()}
    assert names == {log_of(folder).name, ".lock", ".wake"}
    assert {stat.S_IMODE(path.lstat().st_mode) for path in folder.iterdir()} == {0o600}


def test_a_folder_that_others_may_use_is_refused(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    with pytest.raises(ValueError, match="chmod 700"):
        SharedLedger(FolderLog(folder), TERMS).start()


def test_a_folder_of_another_user_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it is closed to all others: root could use it, and what it reads there would be theirs."""
    folder.mkdir(mode=0o700)
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    with pytest.raises(ValueError, match=f"belongs to user {me} .* must belong to user {me + 1} alone"):
        SharedLedger(FolderLog(folder), TERMS).start()


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    with pytest.raises(ValueError, match="is no folder"):
        prepare_folder(tmp_path / "x")


def test_a_symbolic_link_to_a_folder_is_refused_and_says_where_it_leads(tmp_path: Path, folder: Path) -> None:
    prepare_folder(folder)
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(ValueError, match=f"link' is a symbolic link.*{folder}"):
        prepare_folder(tmp_path / "link")


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "glusterfs", "fuse.sshfs", "fuse.s3fs"]
)
def test_a_network_file_system_is_refused(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_admission.shared.folder.file_system", lambda folder: kind)
    with pytest.raises(ValueError, match=rf"network file system \({kind}\)"):
        prepare_folder(folder)


@pytest.mark.parametrize("kind", ["tmpfs", "ext4", "xfs", "overlay", "fuseblk", ""])
def test_a_file_system_of_this_host_is_not(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_admission.shared.folder.file_system", lambda folder: kind)
    assert prepare_folder(folder)


def test_the_kind_of_a_file_system_is_the_longest_mount_points(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    point = str(tmp_path).replace(" ", "\\040")
    mounts.write_text(
        f"1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:9 / {point} rw - nfs4 server:/x rw\n"
        f"3 1 0:9 / {point}x rw - tmpfs none rw\n"
    )
    assert file_system(tmp_path / "gpu0", mounts) == "nfs4"
    assert file_system(Path("/usr"), mounts) == "ext4"
    assert file_system(tmp_path, tmp_path / "none") == ""


def test_a_mount_point_of_any_bytes_is_understood(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_bytes(
        b"1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:9 / /\xff\\011a\\012b\\134c\\040d rw - nfs4 server:/x rw\n"
    )
    assert file_system(Path(os.fsdecode(b"/\xff\ta\nb\\c d/gpu0")), mounts) == "nfs4"
    assert file_system(Path("/usr"), mounts) == "ext4"


def test_a_torn_entry_is_passed_by_all_who_read_on(folder: Path, join: Callable[..., SharedLedger]) -> None:
    first, second = join(), join()
    held = ask(first, 70)
    with log_of(folder).open("ab") as log:
        log.write(frame(b"never finished", 1)[:-5])
    waiting = ask(second, 40)
    first.release(held)
    second.pulse()
    assert waiting.state is GRANTED
    assert join().ledger.in_use == 40


def test_an_entry_still_being_written_is_read_when_it_is_whole() -> None:
    whole = frame(b"first", 5) + frame(b"second", 4)
    for cut in range(len(whole) + 1):
        frames = Frames()
        entries: list[Entry] = []
        taken = frames.read(whole[:cut], entries)
        frames.read(whole[taken:], entries)
        assert [entry.data for entry in entries] == [b"first", b"second"]
        assert [entry.at for entry in entries] == [5e-9, 5e-9], "the clock never goes back"


def test_a_head_that_is_no_log_is_none() -> None:
    assert Head.unpack(b"short") is None
    assert Head.unpack(b"x" * HEAD_SIZE) is None


def test_what_is_no_log_is_set_aside(folder: Path, join: Callable[..., SharedLedger]) -> None:
    first = join()
    first.stop()
    log_of(folder).write_bytes(b"x" * 100)
    assert ask(join(), 10).state is GRANTED
    assert (folder / "log.broken").exists()


def test_a_snapshot_that_was_harmed_is_a_log_that_was_lost(
    folder: Path, join: Callable[..., SharedLedger]
) -> None:
    first = join(long=500)
    held = ask(first, 70)
    held.started = True
    while log_of(folder).name.endswith("-0"):
        first.release(ask(first, 1))
    log = log_of(folder)
    harmed = bytearray(log.read_bytes())
    harmed[HEAD_SIZE + 30] ^= 1
    log.write_bytes(harmed)
    newcomer = join(settle=0.2)
    more = ask(newcomer, 40)
    assert more.state is WAITING, "it does not know what is held"
    first.pulse()
    until(lambda: newcomer.pulse() >= 0 and newcomer.replica.settles is None)
    assert (newcomer.ledger.in_use, more.state) == (70, WAITING)
    first.release(held)
    newcomer.pulse()
    assert more.state is GRANTED


def test_a_long_log_is_replaced_by_a_snapshot_and_everybody_goes_on(
    folder: Path, join: Callable[..., SharedLedger]
) -> None:
    first, second, idle = join(long=2000), join(long=2000), join(long=2000)
    held, waiting = ask(first, 70), ask(second, 40)
    for _ in range(100):
        first.release(ask(first, 1))
        second.pulse()
        assert log_of(folder).stat().st_size < 6000
    assert len(list(folder.glob("log-*"))) == 1
    newcomer = join(long=2000)
    assert (newcomer.ledger.in_use, newcomer.ledger.waiting) == (70, 1)
    first.release(held)
    for each in (second, idle, newcomer):
        each.pulse()
        assert each.ledger.in_use == 40
    assert waiting.state is GRANTED


def test_a_process_that_missed_two_replacements_begins_with_the_snapshot(
    join: Callable[..., SharedLedger],
) -> None:
    first, second = join(long=1000), join()
    mine, waiting = ask(second, 70), ask(second, 40)
    for _ in range(100):
        first.release(ask(first, 1))
    second.release(mine)
    assert waiting.state is GRANTED
    first.pulse()
    assert first.ledger.in_use == 40


def test_a_restart_of_all_forgets_those_who_were_killed(
    folder: Path, join: Callable[..., SharedLedger]
) -> None:
    kill_while_it_holds(folder, 60)
    assert ask(join(), 100).state is GRANTED
    assert len(list(folder.glob("*.lock"))) >= 1


def test_bytes_of_a_killed_process_come_back_to_those_who_live(
    folder: Path, join: Callable[..., SharedLedger]
) -> None:
    living = join(pulse=True)
    kill_while_it_holds(folder, 60)
    waiting = ask(living, 100)
    until(lambda: waiting.state is GRANTED)


def test_a_log_that_was_removed_grants_nothing_until_the_living_have_declared(
    folder: Path, join: Callable[..., SharedLedger]
) -> None:
    first = join()
    running = ask(first, 60)
    running.started = True
    log_of(folder).unlink()
    second = join()
    waiting = ask(second, 30)
    assert waiting.state is WAITING
    first.pulse()
    second.pulse()
    assert second.ledger.in_use == 60
    assert second.replica.settles is not None
    assert second.replica.settles - second.now() > 5


def test_a_folder_that_was_removed_is_made_again_and_its_process_is_seen(
    folder: Path, join: Callable[..., SharedLedger]
) -> None:
    first = join()
    running = ask(first, 60)
    running.started = True
    shutil.rmtree(folder)
    second = join()
    assert ask(second, 30).state is WAITING, "its socket shows that somebody used the folder"
    first.pulse()
    second.pulse()
    assert second.ledger.in_use == 60
    assert second.log.is_alive(first.log._process)  # type: ignore[attr-defined]


def test_a_folder_that_was_moved_away_is_made_again_and_its_processes_are_seen(
    folder: Path, join: Callable[..., SharedLedger]
) -> None:
    """Their locked files still are, but elsewhere: nobody would see them, and all would count as dead."""
    first, second = join(), join()
    ask(first, 60).started = True
    folder.rename(folder.with_name("moved"))
    for each in (first, second, first):
        each.pulse()
    assert [each.ledger.in_use for each in (first, second)] == [60, 60]
    assert second.log.is_alive(first.log._process) is True  # type: ignore[attr-defined]


@pytest.mark.parametrize("left", [0.0, 0.5, 0.99])
def test_a_log_that_was_cut_short_is_lost_not_waited_for(
    folder: Path, join: Callable[..., SharedLedger], left: float
) -> None:
    first, second = join(settle=0.0), join(settle=0.0)
    running = ask(first, 60)
    running.started = True
    second.catch_up()
    os.truncate(log_of(folder), int(log_of(folder).stat().st_size * left))
    first.release(ask(first, 1))
    second.pulse()
    first.pulse()
    second.pulse()
    assert first.ledger.in_use == second.ledger.in_use == 60
    assert len(first.members()) == 2


@pytest.mark.parametrize("removed", ["*.lock", "*.wake", "*.[lw]*"])
def test_files_that_show_a_process_are_made_again_when_they_were_removed(
    folder: Path, join: Callable[..., SharedLedger], removed: str
) -> None:
    """As by somebody who takes them for stale ones."""
    first, second = join(), join()
    held = ask(first, 70)
    for path in folder.glob(removed):
        path.unlink()
    for each in (first, second):
        each.pulse()
        assert each.away is None
    assert {path.suffix for path in folder.iterdir()} == {"", ".lock", ".wake"}
    name = first.log._process  # type: ignore[attr-defined]
    assert second.log.is_alive(name) is True
    waiting = ask(second, 40)
    first.release(held)
    started = time.monotonic()
    second.log.wait(60.0)
    assert time.monotonic() - started < 50, "it can be woken"
    second.pulse()
    assert waiting.state is GRANTED


def test_bytes_of_one_that_died_without_its_lock_file_come_back_after_a_ttl_and_a_half(
    folder: Path,
) -> None:
    now = [1000.0]
    living = SharedLedger(FolderLog(folder), Terms((100,), lease_ttl=0.2), clock=lambda: now[0])
    living.start(pulse=False)
    kill_while_it_holds(folder, 60, lease_ttl=0.2)
    living.catch_up()
    for path in folder.glob("*.lock"):
        if path.stem != living.log._process:  # type: ignore[attr-defined]
            path.unlink()
    waiting = ask(living, 70)

    def comes_back() -> bool:
        now[0] += 0.05
        living.pulse()
        return waiting.state is GRANTED

    assert not any(comes_back() for _ in range(3)), "nothing is known of it yet"
    until(comes_back)
    living.release(waiting)
    living.stop()


def test_another_boot_begins_a_new_log(
    folder: Path, join: Callable[..., SharedLedger], monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_while_it_holds(folder, 60)
    monkeypatch.setattr("gpu_admission.shared.folder._boot_id", lambda: "another")
    assert ask(join(), 100).state is GRANTED
    assert log_of(folder).name == "log-another-0"


def test_a_full_disk_is_a_log_that_is_away_and_nothing_is_lost(
    join: Callable[..., SharedLedger], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = join(), join()
    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr("os.write", lambda fd, data: real(fd, data[:9]))
        ticket = ask(first, 70)
        assert ticket.state is NEW
        assert "No space left" in (first.away or "")
    first.pulse()
    assert ticket.state is GRANTED
    second.pulse()
    assert second.ledger.in_use == 70


def test_a_disk_that_stays_full_is_told_once(
    join: Callable[..., SharedLedger], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = join()
    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr("os.write", lambda fd, data: real(fd, data[:200]))  # a small entry finds room
        first.allow(0, why=Why("x" * 100, "y" * 200))
        for _ in range(5):
            first.pulse()
        assert first.away
    first.pulse()
    assert [" is back" in each.message for each in caplog.records] == [False, True]


def test_a_broken_disk_is_a_log_that_is_away(
    join: Callable[..., SharedLedger], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = join()

    def broken(fd: int, data: bytes) -> int:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("os.write", broken)
        ask(first, 70)
        assert "Input/output error" in (first.away or "")
    first.pulse()
    assert first.away is None


def test_a_folder_that_can_not_be_read_is_away_until_it_can(
    join: Callable[..., SharedLedger], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = join(), join()
    held = ask(second, 70)

    def broken(fd: int, size: int, offset: int) -> bytes:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("os.pread", broken)
        first.catch_up()
        assert "can't be read or written (Input/output error)" in (first.away or "")
    first.catch_up()
    assert first.away is None
    assert first.ledger.in_use == 70
    second.release(held)


def test_a_folder_that_was_made_anew_for_others_too_is_away_until_it_is_this_users_alone(
    folder: Path, join: Callable[..., SharedLedger]
) -> None:
    """Requests wait for it like for any log that is away: none of them fails with its error."""
    first = join()
    running = ask(first, 60)
    running.started = True
    shutil.rmtree(folder)
    folder.mkdir()
    folder.chmod(0o755)
    first.catch_up()
    assert "(chmod 700)" in (first.away or "")
    waiting = ask(first, 30)
    assert waiting.state is NEW
    folder.chmod(0o700)
    first.pulse()
    assert first.away is None
    assert first.ledger.in_use == 60
    assert waiting.state is WAITING, "the log was lost"


def test_what_lands_in_the_rest_of_a_log_that_was_cut_short_is_said_again(
    folder: Path, join: Callable[..., SharedLedger]
) -> None:
    """Before anybody has looked whether the file is still whole."""
    first = join(settle=0.0)
    running = ask(first, 60)
    running.started = True
    first.log._look_at = math.inf  # type: ignore[attr-defined]
    os.truncate(log_of(folder), HEAD_SIZE)
    assert ask(first, 30).state is GRANTED
    assert first.ledger.in_use == 90


def test_a_process_that_stopped_while_it_replaced_the_log_stops_nobody(
    folder: Path, join: Callable[..., SharedLedger]
) -> None:
    first, second = join(), join()
    held = ask(first, 70)
    file = LogFile(folder, _boot_id())
    file.open()
    file.seal()  # and no more
    waiting = ask(first, 40)
    second.pulse()
    assert (waiting.state, second.ledger.waiting) == (WAITING, 1)
    assert log_of(folder).name.endswith("-1")
    second.release(ask(second, 1))
    first.release(held)
    assert waiting.state is GRANTED
    assert join().ledger.in_use == 40
    file.close()


def test_what_was_said_behind_a_seal_counts_once_in_the_next_file(
    folder: Path, join: Callable[..., SharedLedger]
) -> None:
    first, second = join(), join()
    file = LogFile(folder, _boot_id())
    file.open()
    tickets = []
    for turn in range(20):
        tickets.append(ask((first, second)[turn % 2], 1))
        if turn % 3 == 0:
            file.open()
            file.seal()
    assert {ticket.state for ticket in tickets} == {GRANTED}
    for each in (first, second, join()):
        each.pulse()
        assert each.ledger.in_use == 20
    file.close()


def test_a_forked_child_does_not_keep_a_dead_parent_alive(folder: Path) -> None:
    prepare_folder(folder)
    parent = subprocess.Popen(
        [sys.executable, "-c", FORKS, str(folder)], stdout=subprocess.PIPE, text=True, close_fds=True
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    watcher = Presence(folder, "watcher")
    try:
        assert watcher.is_alive("parent") is True
        parent.kill()
        parent.wait()
        until(lambda: watcher.is_alive("parent") is False)  # the child has to get so far
    finally:
        os.kill(child, 9)
        watcher.close()
        parent.stdout.close()


def test_a_process_without_a_lock_file_is_neither_dead_nor_alive(folder: Path) -> None:
    prepare_folder(folder)
    presence = Presence(folder, "me")
    assert presence.is_alive("stranger") is None
    assert not presence.has_joined("stranger")
    assert presence.is_alive("me") is True
    presence.close()


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_who_has_no_room_for_another_open_file_takes_nobody_for_dead(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    prepare_folder(folder)
    presence, living = Presence(folder, "me"), Presence(folder, "living")

    def fail(*arguments: object) -> int:
        raise OSError(error, os.strerror(error))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fail)
        assert presence.is_alive("living") is True
    living.close()
    presence.close()


def test_what_the_long_dead_left_is_swept_away(folder: Path) -> None:
    prepare_folder(folder)
    presence = Presence(folder, "me")
    living = Presence(folder, "living")
    (folder / "old.lock").touch(0o600)
    presence.sweep()
    (folder / "new.lock").touch(0o600)
    assert sorted(presence.others()) == ["living", "new", "old"], "the log may not say yet that they are dead"
    presence.sweep()
    assert sorted(presence.others()) == ["living", "new"]
    living.close()
    presence.close()


@pytest.mark.parametrize("name", ["x" * 100, "\u6f22" * 30])
def test_a_long_path_is_no_obstacle_to_waking(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    first, second = SharedLedger(FolderLog(folder), TERMS), SharedLedger(FolderLog(folder), TERMS)
    first.start(pulse=False)
    second.start()
    held, waiting = ask(first, 70), ask(second, 40)
    first.release(held)
    until(lambda: waiting.state is GRANTED)
    second.release(waiting)
    second.stop()
    first.stop()


def test_what_waits_is_refused_when_the_capacity_shrinks_below_it(join: Callable[..., SharedLedger]) -> None:
    first, second = join(), join()
    ask(first, 70)
    waiting = ask(second, 90)
    first.resize([80])
    second.pulse()
    assert waiting.state is REFUSED


FORKS = """
import os, sys, time
from pathlib import Path
from gpu_admission.shared.presence import Presence
from gpu_admission.shared.protocol import Entry
presence = Presence(Path(sys.argv[1]), "parent")
child = os.fork()
if not child:
    time.sleep(60)
print(child, flush=True)
time.sleep(60)
"""

HOLDS = """
import sys, time
from gpu_admission.budget.ticket import Ticket
from gpu_admission.shared.folder import FolderLog
from gpu_admission.shared.ledger import SharedLedger
from gpu_admission.shared.logfile import LogFile
from gpu_admission.shared.operations import Open, Terms, Why, encode
shared = SharedLedger(FolderLog(sys.argv[1]), Terms((100,), lease_ttl=float(sys.argv[3])))
shared.start()
ticket = Ticket(int(sys.argv[2]))
shared.ask(ticket)
print(ticket.state.value, flush=True)
time.sleep(60)
"""


def kill_while_it_holds(folder: Path, size: int, lease_ttl: float = 10.0) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(folder), str(size), str(lease_ttl)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "granted\n"
    process.kill()
    process.wait()
    process.stdout.close()


async def in_one_turn(shared: SharedLedger, *sizes: int) -> list[Ticket]:
    """One after the other, each ends before the next asks; all in one turn of the event loop."""
    tickets = []
    for size in sizes:
        ticket = Ticket(size)
        shared.ask(ticket, start=True)
        shared.release(ticket)
        tickets.append(ticket)
    return tickets


async def until_told(shared: SharedLedger) -> None:
    await until_async(lambda: not shared._member.untold)


def entries_in(folder: Path) -> int:
    file = LogFile(folder, _boot_id())
    file.open()
    entries = len(file.read())
    file.close()
    return entries


@pytest.mark.usefixtures("long_moment")
@pytest.mark.parametrize(("sizes", "said"), [((40,) * 20, 2), ((40, 41) * 3, 7)])
async def test_requests_of_one_turn_of_the_loop_share_what_is_said(
    folder: Path, join: Callable[..., SharedLedger], sizes: tuple[int, ...], said: int
) -> None:
    first, second = join(), join()
    before = entries_in(folder)
    tickets = await in_one_turn(first, *sizes)
    assert all(ticket.started for ticket in tickets)
    await until_told(first)
    assert entries_in(folder) - before == said
    second.pulse()
    assert first.ledger.in_use == second.ledger.in_use == 0
    assert {ticket.state for ticket in tickets} == {ENDED}


async def test_who_looks_at_the_ledger_sees_what_has_ended(join: Callable[..., SharedLedger]) -> None:
    first, second = join(), join()
    await in_one_turn(first, 70)
    assert first.ledger.in_use == 0
    second.catch_up()
    assert second.ledger.in_use == 0


async def test_bytes_are_not_handed_on_past_somebody_who_is_known_to_wait(
    join: Callable[..., SharedLedger],
) -> None:
    first, second = join(), join()
    held = ask(first, 70)
    waiting = ask(second, 70)
    first.catch_up()
    first.release(held)
    late = ask(first, 70)
    assert (waiting.state, late.state) == (WAITING, WAITING)
    second.catch_up()
    assert waiting.state is GRANTED


async def test_bytes_are_handed_on_for_a_moment_only(
    folder: Path, join: Callable[..., SharedLedger], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_admission.shared.membership.MOMENT", 0.0)
    first = join()
    before = entries_in(folder)
    await in_one_turn(first, 40, 40, 40)
    await until_told(first)
    assert entries_in(folder) - before == 4


async def test_who_begins_to_wait_has_others_tell_what_has_ended(join: Callable[..., SharedLedger]) -> None:
    """Even where their event loop stands still."""
    first, second = join(pulse=True), join()
    await in_one_turn(first, 70)
    waiting = ask(second, 70)
    assert waiting.state is WAITING
    until(lambda: not first._member.untold)  # the loop stands still: none of its tasks goes on
    second.catch_up()
    assert waiting.state is GRANTED


@pytest.fixture
def long_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_admission.shared.membership.MOMENT", 60.0)


@pytest.mark.usefixtures("long_moment")
async def test_one_that_starts_in_place_of_another_says_nothing_and_one_of_another_size_does_not_start(
    folder: Path, join: Callable[..., SharedLedger]
) -> None:
    first = join()
    await in_one_turn(first, 40)
    before, other, same = entries_in(folder), Ticket(41), Ticket(40)
    assert (first.hand_on(other), other.state) == (False, NEW)
    assert first.hand_on(same)
    assert (same.state, same.started, same.device) == (GRANTED, True, 0)
    assert not first.hand_on(Ticket(40)), "nothing else has ended"
    assert entries_in(folder) == before
    assert first.ledger.in_use == 40
    first.release(same)
    assert first.ledger.in_use == 0


@pytest.mark.usefixtures("long_moment")
async def test_a_lease_that_ends_in_the_middle_of_a_start_ends_after_it(
    join: Callable[..., SharedLedger], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a garbage collection ends it: what it changes is being read just then."""
    first, second = join(), join()
    running, untold = ask(first, 30), first._member.untold
    find, found = untold.like, list[int]()

    def like(ticket: Ticket) -> Ticket | None:
        first.release(running)
        assert not first.hand_on(Ticket(40)), "a start in the middle of another"
        found.append(len(untold))
        return find(ticket)

    monkeypatch.setattr(Untold, "like", lambda self, ticket: like(ticket))
    await in_one_turn(first, 40)
    same = Ticket(40)
    assert first.hand_on(same)
    assert found == [1], "nothing was added meanwhile"
    first.release(same)
    assert first.ledger.in_use == 0
    second.catch_up()
    assert second.ledger.in_use == 0


async def test_a_lease_that_ends_in_the_middle_of_another_end_ends_after_it(
    join: Callable[..., SharedLedger], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = join()
    one, other = ask(first, 30), ask(first, 40)
    add = Untold.add

    def interrupted(self: Untold, ticket: Ticket) -> None:
        first.release(other)
        add(self, ticket)

    monkeypatch.setattr(Untold, "add", interrupted)
    first.release(one)
    assert first.ledger.in_use == 0
    assert not first.own


async def test_a_process_that_leaves_hands_nothing_on(join: Callable[..., SharedLedger]) -> None:
    first, second = join(), join()
    await in_one_turn(first, 70)
    first.stop()
    late = Ticket(70)
    assert (first.hand_on(late), late.state) == (False, NEW)
    second.catch_up()
    assert second.ledger.in_use == 0


async def test_a_drained_budget_hands_nothing_on(join: Callable[..., SharedLedger]) -> None:
    first, second = join(), join()
    await in_one_turn(first, 70)
    second.drain()
    first.catch_up()
    late = Ticket(70)
    first.ask(late, start=True)
    assert late.state is REFUSED


def test_a_next_file_of_another_log_is_begun_again_not_gone_on_in(
    folder: Path, join: Callable[..., SharedLedger]
) -> None:
    first = join()
    running = ask(first, 60)
    running.started = True
    file = LogFile(folder, _boot_id())
    file.open()
    file.seal()
    file.close()
    opening = frame(encode("", 0, Open(0.0, expires=False)), 1)
    log_of(folder).with_name(log_of(folder).name[:-1] + "1").write_bytes(
        Head(b"x" * 16, 1, 0).pack() + snapshot_frame(dump(Replica()), 1) + opening
    )
    first.pulse()
    assert first.is_in
    assert first.leases_lost == 1
    assert first.ledger.in_use == 60, "it has declared what runs"


def test_a_process_that_was_passed_by_several_files_begins_with_the_newest(
    folder: Path, join: Callable[..., SharedLedger]
) -> None:
    first, idle = join(long=500), join()
    held = ask(first, 60)
    for _ in range(40):
        first.release(ask(first, 1))
    assert not log_of(folder).name.endswith(("-0", "-1"))
    idle.catch_up()
    assert idle.ledger.in_use == 60
    first.release(held)


def test_the_lifeline_is_the_file_that_says_that_a_process_lives(join: Callable[..., SharedLedger]) -> None:
    first, second = join(), join()
    copy = os.dup(first.log.lifeline or -1)
    name = first.log._process  # type: ignore[attr-defined]
    first.log._presence.abandon()  # type: ignore[attr-defined]  # as when it dies
    assert second.log.is_alive(name) is True
    os.close(copy)
    assert second.log.is_alive(name) is False
    second.pulse()
    assert [member.is_self for member in second.members()] == [True]
    first._member.has_left = True


def test_a_disk_that_is_full_when_the_log_is_replaced_is_a_log_that_is_away(
    folder: Path, join: Callable[..., SharedLedger], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = join(long=500)
    before, real = log_of(folder), os.write
    with monkeypatch.context() as patch:
        patch.setattr("os.write", lambda fd, data: real(fd, data[:3] if len(data) > 200 else data))
        while first.away is None:
            first.release(ask(first, 1))
        assert "No space left" in first.away
    first.pulse()
    assert first.away is None
    assert ask(first, 10).state is GRANTED
    assert log_of(folder) != before


def test_what_the_host_does_not_tell_is_not_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(self: Path, *arguments: object) -> str:
        raise PermissionError(str(self))

    monkeypatch.setattr(Path, "read_text", refuse)
    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert _boot_id() == ""
    assert not _sockets_in(tmp_path, "me")


@pytest.mark.parametrize("name", ["gpu0", "x" * 100])
def test_those_who_listen_in_a_folder_that_is_gone_are_seen_whatever_others_call_their_sockets(
    tmp_path: Path, name: str
) -> None:
    folder = tmp_path / name
    prepare_folder(folder)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        stranger.bind(b"\0\xff\xfe" + os.urandom(8).hex().encode())
        assert not _sockets_in(tmp_path / "none", "me")
        living = Presence(folder, "living")
        shutil.rmtree(folder)
        assert _sockets_in(folder, "me")
        living.abandon()


def test_a_socket_that_cannot_be_made_leaves_nothing_open(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_folder(folder)
    before = len(os.listdir("/proc/self/fd"))

    def fail(self: Path, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "chmod", fail)
        with pytest.raises(PermissionError):
            Presence(folder, "me")
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_process_that_makes_its_lock_file_again_looks_dead_to_nobody_meanwhile(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bytes would be given away while it works."""
    prepare_folder(folder)
    watcher, presence = Presence(folder, "watcher"), Presence(folder, "me")
    (folder / "me.lock").unlink()
    real = fcntl.flock
    seen: list[bool | None] = []

    def flock(fd: int, how: int) -> None:
        if how == fcntl.LOCK_EX:
            seen.append(watcher.is_alive("me"))
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    presence.show()
    assert seen == [None]
    assert watcher.is_alive("me") is True
    assert not presence.is_gone
    assert sorted(path.name for path in folder.glob("me.*")) == ["me.lock", "me.wake"]
    watcher.close()
    presence.close()


@pytest.mark.parametrize("name", ["flock", "rename"])
def test_a_lock_that_can_not_be_taken_leaves_nothing_behind(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    prepare_folder(folder)
    before = len(os.listdir("/proc/self/fd"))

    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with monkeypatch.context() as patch:
        patch.setattr(fcntl if name == "flock" else os, name, fail)
        with pytest.raises(OSError, match="No locks available"):
            Presence(folder, "me")
    assert not list(folder.iterdir())
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_forked_child_lets_go_of_the_lock_and_the_socket(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks: list[Callable[[], object]] = []
    monkeypatch.setattr("gpu_admission.shared.presence.in_child", hooks.append)
    prepare_folder(folder)
    watcher, presence = Presence(folder, "watcher"), Presence(folder, "me")
    assert watcher.is_alive("me") is True
    hooks[1]()
    assert watcher.is_alive("me") is False
    hooks[1]()  # nothing is left to let go of
    watcher.close()
    presence.abandon()


def test_those_who_have_left_leave_nothing_to_do_at_a_fork(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_folder(folder)
    Presence(folder, "first").close()
    gc.collect()
    monkeypatch.setattr(os, "register_at_fork", lambda **hooks: pytest.fail("one for each would pile up"))
    before = len(fork._registered())
    Presence(folder, "second").close()
    gc.collect()
    assert len(fork._registered()) == before


def test_before_a_file_is_open_it_counts_as_gone(folder: Path) -> None:
    assert LogFile(folder, "boot").is_gone


def test_nothing_is_written_while_the_folder_is_away(
    folder: Path, join: Callable[..., SharedLedger], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would leave a hole: everything is said again in its order."""
    first = join()
    before = entries_in(folder)
    with monkeypatch.context() as patch:
        patch.setattr("os.write", lambda fd, data: 0)
        ask(first, 70)
    assert first.away
    first.log.append(encode("", 0, Open(0.0, expires=False)))
    assert entries_in(folder) == before


def test_an_entry_before_a_seal_that_came_right_behind_it_counts_once(
    folder: Path, join: Callable[..., SharedLedger], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = join(), join()
    other = LogFile(folder, _boot_id())
    other.open()
    real = LogFile.write

    def write(self: LogFile, data: bytes) -> None:
        real(self, data)
        other.seal()

    with monkeypatch.context() as patch:
        patch.setattr(LogFile, "write", write)
        assert ask(first, 60).state is GRANTED
    second.catch_up()
    assert first.ledger.in_use == second.ledger.in_use == 60
    other.close()


def test_a_seal_that_cannot_be_written_is_a_log_that_is_away(
    join: Callable[..., SharedLedger], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = join(long=500)

    def fail(self: LogFile) -> None:
        raise LogAway("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(LogFile, "seal", fail)
        while first.away is None:
            first.release(ask(first, 1))
    assert "No space left" in first.away
    first.pulse()
    assert first.away is None


def test_a_file_that_was_replaced_is_read_to_its_end_before_it_is_left(
    folder: Path,
    join: Callable[..., SharedLedger],
) -> None:
    first, second = join(long=500), join()
    held = ask(first, 60)
    before = log_of(folder)
    while log_of(folder) == before:
        first.release(ask(first, 1))
    second.log._look_at = 0.0  # type: ignore[attr-defined]
    waiting = ask(second, 50)
    assert second.leases_lost == 0
    first.release(held)
    second.pulse()
    assert waiting.state is GRANTED


def test_a_log_that_cannot_be_made_whole_leaves_no_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("os.write", lambda fd, data: 5)
        with pytest.raises(ValueError, match="No space left on device"):
            SharedLedger(FolderLog(folder), TERMS).start()
    assert list(folder.glob("log-*")) == list(folder.glob("new-*")) == []


def test_a_log_cut_short_that_another_has_removed_is_left_alone(folder: Path) -> None:
    prepare_folder(folder)
    file = LogFile(folder, _boot_id())
    file.create(encode("", 0, Open(0.0, expires=False)))
    file.open()
    file.read()
    log_of(folder).unlink()
    file.drop_if_short()
    assert file.is_gone
    os.ftruncate(file._fd, 0)
    file.drop_if_short()
    file.create(encode("", 0, Open(0.0, expires=False)))
    file.drop_if_short()
    assert log_of(folder).exists(), "the one after it is another"
    file.close()


def test_a_container_with_a_clock_of_its_own_stamps_entries_with_the_host_s(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Else a log that was lost would have settled at once by a clock that is ahead."""
    prepare_folder(folder)
    offsets = tmp_path / "timens_offsets"
    offsets.write_text("monotonic           0         0\nboottime          300         5\n")
    real = time.clock_gettime_ns
    file = LogFile(folder, "boot")
    monkeypatch.setattr("gpu_admission.shared.logfile._NAMESPACE", str(offsets))
    monkeypatch.setattr("gpu_admission.shared.logfile._clock", lambda clock: real(clock) + 300 * 10**9 + 5)
    inside = LogFile(folder, "boot")
    inside.create(b"said inside")
    now = real(time.CLOCK_BOOTTIME)
    file.open()
    (entry,) = file.read()
    assert abs(entry.at - now / 1e9) < 60
    file.close()


@pytest.mark.parametrize("said", ["monotonic 0 0\n", None])
def test_a_host_without_namespaces_of_time_has_one_clock(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str | None
) -> None:
    if said is not None:
        (tmp_path / "offsets").write_text(said)
    monkeypatch.setattr("gpu_admission.shared.logfile._NAMESPACE", str(tmp_path / "offsets"))
    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    assert 0 <= LogFile(folder, "boot").now() - before < 60 * 10**9
