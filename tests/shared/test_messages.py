"""Whatever goes wrong with a shared budget: the message names the budget, the setting, and what to do."""

from __future__ import annotations

import builtins
import errno
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redis import exceptions

from gpu_admission import Admission, cli
from gpu_admission.budget.ticket import Ticket
from gpu_admission.shared.folder import FolderLog
from gpu_admission.shared.ledger import SharedLedger
from gpu_admission.shared.opening import open_log
from gpu_admission.shared.operations import RULES, Terms
from gpu_admission.shared.protocol import LogAway
from gpu_admission.shared.redisaddress import parse
from gpu_admission.shared.redisadvice import advice
from tests.shared.hub import World
from tests.waiting import free_port

TERMS = Terms((100,))


class Case:
    """What a row of the table may use."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, caplog: Any) -> None:
        self.folder, self.monkeypatch, self.capsys, self.caplog = folder, monkeypatch, capsys, caplog

    def raised(self, shared: object) -> str:
        with pytest.raises((ValueError, TypeError, ImportError)) as caught:
            SharedLedger(open_log(shared), TERMS).start(pulse=False)
        return str(caught.value)

    def fails(self, name: str, number: int, error: int) -> str:
        """``os.NAME`` fails for the ``number``-th time and from then on."""
        real, calls = getattr(os, name), []

        def fail(*arguments: Any, **named: Any) -> Any:
            calls.append(arguments)
            if len(calls) >= number:
                raise OSError(error, os.strerror(error))
            return real(*arguments, **named)

        with self.monkeypatch.context() as patch:
            patch.setattr(os, name, fail)
            return self.raised(str(self.folder))

    def command(self, *arguments: object) -> str:
        assert cli.main([*map(str, arguments)]) != 0
        said: str = self.capsys.readouterr().err
        return said

    def used(self, terms: Terms = TERMS) -> SharedLedger:
        shared = SharedLedger(FolderLog(self.folder), terms, name="worker")
        shared.start(pulse=False)
        return shared


def in_a_file(case: Case) -> str:
    case.folder.write_text("")
    return case.raised(case.folder)


def in_a_folder_of_all(case: Case) -> str:
    case.folder.mkdir()
    case.folder.chmod(0o777)
    return case.raised(case.folder)


def on_a_network_file_system(case: Case) -> str:
    case.monkeypatch.setattr("gpu_admission.shared.folder.file_system", lambda folder: "nfs4")
    return case.raised(case.folder)


def in_a_file_below(case: Case) -> str:
    case.folder.write_text("")
    return case.raised(case.folder / "gpu0")


def away_as(case: Case, error: int) -> str:
    shared = case.used()

    def fail(*arguments: object) -> int:
        raise OSError(error, os.strerror(error))

    with case.monkeypatch.context() as patch:
        patch.setattr(os, "write", fail)
        shared.ask(Ticket(1))
    said = shared.away or ""
    shared.pulse()
    shared.stop()
    return said


def away_from_a_server(case: Case) -> str:
    shared = SharedLedger(open_log(f"redis://127.0.0.1:{free_port()}/0?name=gpu0"), TERMS)
    shared.start(pulse=False)
    said = shared.away or ""
    shared.stop()
    return said


def without_the_client(case: Case) -> str:
    real = builtins.__import__

    def refuse(name: str, *more: Any) -> Any:
        if name == "redis" or name.startswith("redis."):
            raise ImportError("No module named 'redis'")
        return real(name, *more)

    with case.monkeypatch.context() as patch:
        patch.setattr(builtins, "__import__", refuse)
        return case.raised("redis://127.0.0.1/0?name=gpu0")


def by_other_rules(case: Case) -> str:
    shared = case.used()
    case.monkeypatch.setattr("gpu_admission.shared.replica.RULES", RULES + 1)
    said = case.raised(case.folder)
    case.monkeypatch.undo()
    shared.stop()
    return said


def with_other_settings(case: Case) -> str:
    first, second = case.used(), SharedLedger(FolderLog(case.folder), Terms((200,)))
    with case.caplog.at_level(logging.WARNING, "gpu_admission"):
        second.start(pulse=False)
        first.pulse()
    second.stop()
    first.stop()
    return str(case.caplog.text)


def thrown_out(case: Case) -> str:
    shared = case.used()
    with case.caplog.at_level(logging.WARNING, "gpu_admission"):
        cli.main(["budget", "evict", shared.member, str(case.folder)])
        shared.pulse()
    shared.stop()
    return str(case.caplog.text)


def piled_up(case: Case) -> str:
    case.monkeypatch.setattr("gpu_admission.shared.outbox.MOST_UNSAID", 3)
    world = World(1)
    world[0].log.cut()
    for _ in range(3):
        world[0].ask(1)
    with pytest.raises(LogAway) as caught:
        world[0].ask(1)
    return str(caught.value)


def a_stranger_evicted(case: Case) -> str:
    shared = case.used()
    said = case.command("budget", "evict", "nobody", case.folder)
    shared.stop()
    return said


def held(case: Case, *arguments: str) -> str:
    shared = case.used()
    shared.ask(Ticket(60))
    said = case.command("hold", arguments[0], case.folder, *arguments[1:], "--", "true")
    for ticket in shared.own:
        shared.release(ticket)
    shared.stop()
    return said


def refused_while_away(case: Case) -> str:
    admission = Admission(capacity=100, estimator=1, shared=str(case.folder))
    admission.locked._shared._member.away = f"the shared budget {case.folder} is gone"  # type: ignore[attr-defined]
    return admission.entrance._refusals.unreachable().detail


def refused_as_drained(case: Case) -> str:
    shared = case.used()
    shared.drain()
    said = case.command("hold", "1", case.folder, "--", "true")
    shared.stop()
    return said


HERE, SHARED = "{folder}", "shared="
TABLE: dict[str, tuple[Callable[[Case], str], tuple[str, ...]]] = {
    "a relative path": (lambda c: c.raised("gpu0"), (SHARED, "'gpu0'", "absolute path, or a redis://")),
    "what is no log": (lambda c: c.raised(5), ("shared must be", "int", "a folder, a redis:// address")),
    "a file": (in_a_file, (SHARED, HERE, "name one, or a path where it can be made")),
    "a path below a file": (in_a_file_below, (SHARED, HERE, "Not a directory", "can make and write to")),
    "a folder of all": (in_a_folder_of_all, (SHARED, HERE, "mode 777", "chmod 700")),
    "a network": (on_a_network_file_system, (SHARED, HERE, "nfs4", "/dev/shm", "redis://")),
    "no right to make it": (
        lambda c: c.fails("mkdir", 1, errno.EACCES),
        (SHARED, HERE, "Permission denied", "this user can make"),
    ),
    "a read-only disk": (
        lambda c: c.fails("mkdir", 1, errno.EROFS),
        (SHARED, HERE, "Read-only", "such as one in"),
    ),
    "a disk full at start": (
        lambda c: c.fails("write", 1, errno.ENOSPC),
        (SHARED, HERE, "No space left on device", "with some MiB free"),
    ),
    "a disk full later": (
        lambda c: away_as(c, errno.ENOSPC),
        (HERE, "No space left", "see that its disk has room"),
    ),
    "a broken disk": (lambda c: away_as(c, errno.EIO), (HERE, "Input/output error", "see that its disk")),
    "no such scheme": (
        lambda c: c.raised("http://h/x"),
        (SHARED, "http://h'", "one of redis, rediss", "as in"),
    ),
    "no name": (
        lambda c: c.raised("redis://h/0"),
        (SHARED, "redis://h'", "must name the budget", "?name=gpu0"),
    ),
    "no master": (
        lambda c: c.raised("redis+sentinel://a,b?name=x"),
        (SHARED, "names no master", "redis+sentinel://host1,host2/mymaster/0?name=gpu0"),
    ),
    "a prefix": (lambda c: c.raised("redis://h/0?name=x&prefix=a b"), (SHARED, "prefix=", "letters, digits")),
    "a port": (
        lambda c: c.raised("redis://h:x/0?name=x"),
        (SHARED, "redis://***", "port is a number", "percent-encode the password", "@host:6379/0"),
    ),
    "an option of no client": (
        lambda c: c.raised("redis://h/0?name=x&nonsense=1"),
        (SHARED, "redis://h/0 (x)", "nonsense", "options of redis-py"),
    ),
    "a value of no option": (
        lambda c: c.raised("redis://h/0?name=x&socket_timeout=soon"),
        (SHARED, "redis://h/0 (x)", "socket_timeout", "options of redis-py"),
    ),
    "options that are ours": (
        lambda c: c.raised("redis://h/0?name=x&protocol=3&decode_responses=True"),
        (SHARED, "redis://h'", "leave out decode_responses, protocol"),
    ),
    "no server": (
        away_from_a_server,
        ("redis://127.0.0.1", "gpu0", "refused", "see that shared= names", "is up"),
    ),
    "no client": (without_the_client, ("shared budget on Redis", "pip install gpu-admission[redis]")),
    "other rules": (by_other_rules, (HERE, f"version {RULES}", "stop the others first")),
    "other settings": (
        with_other_settings,
        (HERE, "capacity=100 B here, 200 B in force", "Give all of them the same"),
    ),
    "thrown out": (thrown_out, (HERE, "lease_ttl=10 s, was evicted", "joins again", "raise lease_ttl")),
    "too much unsaid": (piled_up, ("3 operations on the shared budget", "see that what shared= names")),
    "a folder that is not there": (
        lambda c: c.command("budget", "show", c.folder),
        (HERE, "there is no folder", SHARED),
    ),
    "no such member": (a_stranger_evicted, (HERE, "'nobody'", "members are worker.1")),
    "nothing to hold of": (
        lambda c: c.command("hold", "1", c.folder, "--", "true"),
        (HERE, "no process has used the budget", "give --capacity"),
    ),
    "too much to hold": (
        lambda c: held(c, "1000"),
        (HERE, "1000 B were refused", "fits is 100 B", "budget show"),
    ),
    "no time to hold": (
        lambda c: held(c, "50", "--timeout", "0"),
        (HERE, "--timeout=0 s", "budget show says who"),
    ),
    "a drained budget": (refused_as_drained, (HERE, "it is drained", "gpu-admission budget show")),
    "a request while away": (refused_while_away, (HERE, "is gone; shared= says where", "shared_fallback=0")),
}


@pytest.mark.parametrize(
    ("error", "parts"),
    [
        ("AuthenticationError", ("user and password into shared=",)),
        ("NoPermissionError", ("user and password into shared=", "INFO", "gpu_admission:{x}:*")),
        ("OutOfMemoryError", ("maxmemory", "shared=")),
        ("ReadOnlyError", ("master in shared=",)),
        (
            "ResponseError WRONGTYPE Operation against a key",
            ("gpu_admission:{x}:*", "another name= into shared="),
        ),
        ("ConnectionError max number of clients reached", ("maxclients",)),
        ("ConnectionError", ("see that shared= names a Redis server that is up",)),
    ],
)
def test_what_a_server_says_comes_with_what_to_do(error: str, parts: tuple[str, ...]) -> None:
    name, _, text = error.partition(" ")
    said = advice(getattr(exceptions, name)(text), parse("redis://h/0?name=x"))
    for part in parts:
        assert part in said


@pytest.mark.parametrize("what", TABLE)
def test_a_message_names_the_budget_the_setting_and_what_to_do(
    what: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    case = Case(tmp_path / "gpu0", monkeypatch, capsys, caplog)
    fails, parts = TABLE[what]
    said = re.sub(r"\s+", " ", fails(case))
    for part in parts:
        assert part.format(folder=case.folder) in said
