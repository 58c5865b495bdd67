"""``gpu-admission budget show|drain|evict``: an operator's way into a shared budget.

It reads the log without taking part: it neither joins nor changes settings. All that it writes is
``drain`` and ``evict``, as single entries.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias

import msgspec

from gpu_admission.shared import dump
from gpu_admission.shared.folder import FolderLog
from gpu_admission.shared.opening import open_log
from gpu_admission.shared.operations import Drain, Gone, Operation, encode
from gpu_admission.shared.process import new_name, process_of
from gpu_admission.shared.protocol import Entry, Log
from gpu_admission.shared.redislog import RedisLog
from gpu_admission.shared.replica import Replica
from gpu_admission.shared.views import view_budget, view_members
from gpu_admission.sizes import format_bytes
from gpu_admission.types import MemberSnapshot

VARIABLE = "GPU_ADMISSION_SHARED"
NOT_NAMED = f"name the folder or redis:// address of the budget, or set {VARIABLE}"
_WITHIN = 5.0
_COLUMNS = """
Columns: "holds" is the memory of its "requests", "waiting" how many wait, "for" how long it has been a
member, "silent" how long ago it was last heard from. In a folder, silence of any length is normal: a process
that has nothing to do says nothing. "dead" there: its process has ended, and its memory is free for whoever
asks next. On Redis a process speaks every fifth of lease_ttl (of 10 s by default), and is "dead" when it was
silent for all of it. "declared dead": its memory is held back for half of lease_ttl before others get it.
"""


class Onlooker:
    """Follows a log without taking part in the budget."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.replica = Replica()
        self.away: str | None = None
        self._lock = threading.RLock()

    def received(self, entries: Sequence[Entry]) -> None:
        with self._lock:
            for at, data in entries:
                self.replica.apply(at, data)

    def restarted(self, snapshot: bytes | None) -> None:
        with self._lock:
            self.replica = Replica()
            if snapshot is not None:
                dump.load(self.replica, snapshot)

    def snapshot(self) -> bytes:
        with self._lock:
            return dump.dump(self.replica)

    def went_away(self, why: str) -> None:
        self.away = why

    def came_back(self) -> None:
        self.away = None

    def now(self) -> float:
        """The log's time, also where nobody has said anything for long."""
        return self.log.now() if isinstance(self.log, (FolderLog, RedisLog)) else self.replica.at

    def members(self) -> tuple[MemberSnapshot, ...]:
        self.log.catch_up()
        with self._lock:
            return view_members(self.replica, "", self.now())

    def gone(self) -> set[str]:
        """The names of members that are dead, which nobody in the log has said yet."""
        with self._lock:
            members, terms = self.replica.members, self.replica.terms
            if self.log.knows_deaths:
                return {name for name in members.living if self.log.is_alive(process_of(name)) is False}
            ttl = math.inf if terms is None else terms.lease_ttl
            return {member.name for member in members.overdue(self.now(), ttl)}

    def summary(self) -> str:
        """One line on the whole budget."""
        with self._lock:
            ledger, settles = self.replica.ledger, self.replica.settles
            if ledger is None:
                return "no process has taken part since this budget began"
            wait = 0.0 if settles is None else settles - self.now()
            state = ", drained" if ledger.closed else f", starts nothing for {wait:.0f} s" if wait > 0 else ""
            return (
                f"{format_bytes(ledger.in_use)} of {format_bytes(ledger.capacity)} in use by "
                f"{ledger.running}, {ledger.waiting} waiting ({format_bytes(ledger.waiting_bytes)}){state}"
            )

    def plain(self) -> dict[str, Any]:
        """The whole budget as plain JSON types."""
        with self._lock:
            return view_budget(self.replica, self.log.where, self.now(), self.gone())

    def say(self, operation: Operation) -> None:
        """Append ``operation``, and have all processes read it."""
        self.log.append(encode("", 0, operation))
        self.log.wake({process_of(name) for name in self.replica.members.living})


Show: TypeAlias = Callable[[str, Sequence[MemberSnapshot], Collection[str]], object]
"""Prints a line on the whole budget, its processes, and which of those have ended."""


def main(arguments: Sequence[str], *, show: Show) -> int:
    """0 when done; 1 when the budget can't be reached, was never used, or has no such member."""
    return run(_parser().parse_args(arguments), show)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpu-admission budget", description="What a shared budget holds, and how to step in."
    )
    actions = parser.add_subparsers(dest="action", required=True)
    show = actions.add_parser("show", help="who holds what, now", epilog=_COLUMNS)
    show.add_argument("--json", action="store_true", help="for programs: bytes, seconds, stable names")
    drain = actions.add_parser("drain", help="admit nothing any more, in any process")
    drain.add_argument("--undo", action="store_true", help="admit again")
    evict = actions.add_parser("evict", help="give the bytes of a process that is stuck to others")
    evict.add_argument("member", help="as show names it")
    for each in (show, drain, evict):
        each.add_argument("shared", **named_or_variable())
    return parser


def named_or_variable() -> Any:
    """How a command is told the budget: an address with a password should not be among arguments, which
    every user of the host can read.
    """
    said = f"the folder or redis:// address of the budget (default: the environment's {VARIABLE})"
    return {"nargs": "?", "default": os.environ.get(VARIABLE) or None, "help": said}


def run(arguments: argparse.Namespace, show: Show) -> int:
    """0 when done; 1 when the budget can't be reached, or has no such member."""
    if arguments.shared is None:
        return _fail(NOT_NAMED)
    if arguments.action == "evict" and _is_place(arguments.member) and not _is_place(arguments.shared):
        return _fail("the member comes first: gpu-admission budget evict MEMBER SHARED")
    try:
        log = open_log(arguments.shared)
        nothing = nothing_there(log)
        if nothing is not None:
            return _fail(nothing)
        onlooker = Onlooker(log)
        log.start(new_name(), onlooker)
    except (ValueError, ImportError) as error:
        return _fail(str(error))
    try:
        if onlooker.away:
            return _fail(onlooker.away)
        if arguments.action == "show":
            _show(onlooker, show, as_json=arguments.json)
            return 0
        return _ACTIONS[arguments.action](onlooker, arguments)
    finally:
        log.stop()


def nothing_there(log: Log) -> str | None:
    """Why there is nothing to look at, where that is so: to start the log would begin the budget, or begin it
    anew.
    """
    missing = log.missing() if isinstance(log, RedisLog) else ()
    if len(missing) == 1:
        return (
            f"the key {missing[0]} of the budget {log.where} is gone from its server: processes that take "
            "part go on until one of them finds that, or another joins; then the budget begins anew, and "
            "starts nothing for lease_ttl"
        )
    no_folder = isinstance(log, FolderLog) and not os.path.exists(log.where)
    if no_folder or missing or (isinstance(log, FolderLog) and not log.is_used()):
        why = " (there is no folder of that name)" if no_folder else ""
        return f"no process has used the budget {log.where} yet{why}: write it as they do in shared="
    return None


def _is_place(text: str) -> bool:
    return "/" in text


def _show(onlooker: Onlooker, show: Show, *, as_json: bool) -> None:
    members = onlooker.members()
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(onlooker.plain())).decode())
    else:
        show(onlooker.summary(), members, onlooker.gone())


def _drain(onlooker: Onlooker, arguments: argparse.Namespace) -> int:
    onlooker.say(Drain(not arguments.undo))

    def is_done() -> bool:
        ledger = onlooker.replica.ledger
        return ledger is None or ledger.closed is not arguments.undo

    if not _came(onlooker, is_done):
        return _no_answer(onlooker)
    print(
        f"{onlooker.log.where} admits again"
        if arguments.undo
        else f"{onlooker.log.where} admits nothing any more, in any process; --undo lets it admit again"
    )
    return 0


def _evict(onlooker: Onlooker, arguments: argparse.Namespace) -> int:
    if arguments.member not in onlooker.replica.members.living:
        return _fail(_no_member(onlooker, arguments.member))
    onlooker.say(Gone(arguments.member, certain=False))
    gone = _came(onlooker, lambda: arguments.member not in onlooker.replica.members.living)
    if not gone:
        return _no_answer(onlooker)
    terms = onlooker.replica.terms
    rest = 0.0 if terms is None else terms.lease_ttl / 2
    print(
        f"{arguments.member} is out: its bytes go to others after {rest:g} s. If it still runs, it joins "
        "again under a new name, is shown as alive, and claims what it works on: end the process to free "
        "that for good"
    )
    return 0


def _no_member(onlooker: Onlooker, asked: str) -> str:
    """Why ``asked`` can't be evicted, and what to write in its place."""
    members, where = onlooker.replica.members, onlooker.log.where
    if asked in members.dead:
        return f"{asked} was declared dead already: its bytes go to others within half a lease_ttl"
    named = [f"{each.name} (pid {each.pid} on {each.host})" for each in members.living.values()]
    of_pid = [each.name for each in members.living.values() if str(each.pid) == asked]
    meant = f"{asked} is the pid of {' and '.join(of_pid)}: write that name" if of_pid else ""
    return meant or (
        f"the shared budget {where} has no member {asked!r} that counts as alive; members are "
        f"{', '.join(named) or 'none'}"
    )


def _no_answer(onlooker: Onlooker) -> int:
    why = onlooker.away or f"{onlooker.log.where} took the entry, and it did not come back"
    return _fail(f"{why}: nothing is known to have changed within {_WITHIN:g} s; try again")


def _came(onlooker: Onlooker, holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + _WITHIN
    while not holds():
        onlooker.log.catch_up()
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def _fail(sentence: str | None) -> int:
    print(f"gpu-admission budget: {sentence}", file=sys.stderr)
    return 1


_ACTIONS = {"drain": _drain, "evict": _evict}
