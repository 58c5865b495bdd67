"""``gpu-admission hold 6GiB /dev/shm/gpu0 -- python train.py``: a command that runs while it holds bytes.

Owns the wait for the bytes, the command's life and what is passed on to it. It takes part in the
budget under the settings that are in force there, and changes none.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from gpu_admission.admission.snapshots import place_in
from gpu_admission.budget.ticket import REFUSED, Ticket
from gpu_admission.settings.environment import HELD_DEVICE
from gpu_admission.shared.command import NOT_NAMED, Onlooker, named_or_variable, nothing_there
from gpu_admission.shared.ledger import SharedLedger
from gpu_admission.shared.opening import open_log
from gpu_admission.shared.operations import TERMS, Terms
from gpu_admission.shared.process import new_name
from gpu_admission.shared.terms import in_force
from gpu_admission.sizes import format_bytes, parse_bytes

FAILED, CANNOT_RUN, NOT_FOUND = 125, 126, 127
"""The status that ``env`` and ``timeout`` use too: any other is the command's own."""
_LOOK = 0.25
_PATIENCE = 1.0
"""Seconds of waiting after which it is said."""
_PASSED_ON = ("SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCONT", "SIGWINCH")
_ENDS = ("SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT")
"""Those of them that end the wait, where no command runs yet."""
_FROM_TERMINAL = ("SIGINT", "SIGQUIT", "SIGWINCH")
"""Signals that a terminal sends to the command by itself."""

_UNTIL_PARENT_DIES = f"""
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    os.kill(os.getpid(), signal.SIGKILL)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    print(f"gpu-admission hold: {{error}}: {{sys.argv[2]!r}}", file=sys.stderr)
    sys.exit({NOT_FOUND} if isinstance(error, FileNotFoundError) else {CANNOT_RUN})
"""


def main(arguments: Sequence[str]) -> int:
    """Run the command line; the status of the command that it ran, or 125 where none was run."""
    own, command = list(arguments), []
    if "--" in own:
        own, command = own[: own.index("--")], own[own.index("--") + 1 :]
    options = _parser("*" if command else argparse.REMAINDER).parse_args(own)
    command = options.command + command
    if not command:
        return _fail("say what to run: gpu-admission hold SIZE SHARED -- COMMAND ...")
    if options.shared is None:
        return _fail(NOT_NAMED)
    try:
        return hold(
            parse_bytes(options.size, name="size"),
            options.shared,
            command,
            timeout=options.timeout,
            capacity=None if options.capacity is None else parse_bytes(options.capacity, name="--capacity"),
        )
    except (ValueError, ImportError) as error:
        return _fail(str(error))


def _parser(rest: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpu-admission hold", description="Wait for bytes of a shared budget, and run a command."
    )
    parser.add_argument("size", help="bytes to hold while the command runs, such as 6GiB")
    parser.add_argument("shared", **named_or_variable())
    parser.add_argument(
        "--timeout", type=_seconds, default=math.inf, help="seconds to wait (default: for ever)"
    )
    parser.add_argument("--capacity", help="of the budget, where no process has used it yet")
    parser.add_argument("command", nargs=rest, help="-- and the command with its arguments")
    return parser


def _seconds(said: str) -> float:
    seconds = float(said)
    if not seconds >= 0:
        raise argparse.ArgumentTypeError(f"{said} is not 0 seconds or more")
    return seconds


def hold(
    size: int,
    shared: str,
    command: Sequence[str],
    *,
    timeout: float = math.inf,
    capacity: int | None = None,
) -> int:
    """Run ``command`` while ``size`` bytes of ``shared`` are held; its exit status."""
    news = threading.Event()
    terms = _terms_in_force(shared, capacity)
    ledger = SharedLedger(
        open_log(shared, lease_ttl=terms.lease_ttl), terms, woken=lambda tickets: news.set()
    )
    ledger.start()
    ticket = Ticket(size)
    with Passing() as passing:
        try:
            ledger.ask(ticket, came_back=lambda ticket: news.set())
            why_not = _wait(ledger, ticket, news, timeout, passing)
            if why_not is not None:
                return _fail(why_not, 128 + passing.ended_by if passing.ended_by else FAILED)
            return _run(command, ticket.device, ledger.log.lifeline, passing)
        finally:
            ledger.release(ticket)
            ledger.stop()


def _terms_in_force(shared: str, capacity: int | None) -> Terms:
    """The terms of the budget's processes; else terms of ``capacity``. ``ValueError`` if there is neither."""
    log = open_log(shared)
    nothing = nothing_there(log)
    if nothing is not None and capacity is None:
        raise ValueError(f"{nothing}; or give --capacity to begin it")
    onlooker = Onlooker(log)
    log.start(new_name(), onlooker)
    try:
        log.catch_up()
        terms, ledger = onlooker.replica.terms, onlooker.replica.ledger
    finally:
        log.stop()
    if terms is not None and ledger is not None:
        return msgspec.structs.replace(in_force(terms, ledger), defaults=TERMS)
    if capacity is None:
        raise ValueError(onlooker.away or f"no process has used the budget {log.where} yet: give --capacity")
    if onlooker.away is not None:
        return Terms((capacity,), defaults=TERMS)  # whatever others have given there is in force
    print(
        f"gpu-admission hold: a new budget of {format_bytes(capacity)} begins at {log.where}, which no other "
        "process uses",
        file=sys.stderr,
    )
    return Terms((capacity,), defaults=tuple(name for name in TERMS if name != "capacities"))


def _wait(
    ledger: SharedLedger, ticket: Ticket, news: threading.Event, timeout: float, passing: Passing
) -> str | None:
    """``None`` once the bytes are held; otherwise why they are not."""
    began = time.monotonic()
    end, is_said = began + timeout, False
    while not ledger.may_start(ticket) or passing.ended_by:
        if passing.ended_by:
            name = signal.Signals(passing.ended_by).name
            return f"ended by {name} while it waited for {format_bytes(ticket.bytes)}"
        if ticket.state is REFUSED:
            with ledger.lock:
                largest = ledger.ledger.largest()
            return (
                f"{format_bytes(ticket.bytes)} were refused by the shared budget {ledger.log.where}: it is "
                f"drained, its queue is full (max_waiting), or the largest request that fits is "
                f"{format_bytes(largest)}; see gpu-admission budget show"
            )
        left = end - time.monotonic()
        if left <= 0:
            return ledger.away or (
                f"{format_bytes(ticket.bytes)} of the shared budget {ledger.log.where} were not free within "
                f"--timeout={timeout:g} s; gpu-admission budget show says who holds them"
            )
        if not is_said and time.monotonic() - began >= _PATIENCE:
            is_said = True
            print(f"gpu-admission hold: {waits(ledger, ticket)}", file=sys.stderr)
        news.wait(min(_LOOK, left))
        news.clear()
    return None


def waits(ledger: SharedLedger, ticket: Ticket) -> str:
    """What it waits for, and its place in line."""
    with ledger.lock:
        whole, where = ledger.ledger, ledger.log.where
        if ledger.away is not None:
            return f"{ledger.away}: waiting for it"
        place = place_in(whole, ticket)
        line = "" if place is None else f", number {place.number} of {place.of} in line"
        return (
            f"waiting for {format_bytes(ticket.bytes)} of the shared budget {where}: "
            f"{format_bytes(whole.available)} of {format_bytes(whole.capacity)} are free{line}"
        )


def _run(command: Sequence[str], device: int, lifeline: int | None, passing: Passing) -> int:
    """Its status. However this process dies, the command never outlives the time its bytes are counted."""
    told = {**os.environ, HELD_DEVICE: str(device)}
    try:
        if lifeline is None:
            child = subprocess.Popen(_dies_with_this(command), env=told)
        else:
            child = subprocess.Popen(command, env=told, pass_fds=(lifeline,))
    except FileNotFoundError as error:
        return _fail(str(error), NOT_FOUND)
    except OSError as error:
        return _fail(str(error), CANNOT_RUN)
    passing.to(child)
    status = _wait_for(child)
    return status if status >= 0 else 128 - status


def _wait_for(child: subprocess.Popen[bytes]) -> int:
    """Its status. It looks up now and then: a signal that another thread took does not end a wait."""
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.wait(_LOOK)


def _dies_with_this(command: Sequence[str]) -> Sequence[str]:
    """``command``, killed by Linux when this process dies: nobody would renew its lease any more."""
    if sys.platform != "linux":
        return command
    return [sys.executable, "-I", "-S", "-c", _UNTIL_PARENT_DIES, str(os.getpid()), *command]


class Passing:
    """For the block, what signals do to this process: they reach the command, or end the wait for its bytes.

    They only leave a note: an exception in the middle of leaving the queue would leave bytes behind.
    """

    def __init__(self) -> None:
        self.ended_by = 0
        """The signal that ended the wait; 0 for none."""
        self._child: subprocess.Popen[bytes] | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Passing:
        numbers = [signal.Signals[name] for name in _PASSED_ON if hasattr(signal, name)]
        heard = [
            number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN
        ]  # as by nohup
        self._before = {number: signal.signal(number, self._take) for number in heard}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take(self, number: int, frame: object) -> None:
        name = signal.Signals(number).name
        if self._child is None:
            self.ended_by = number if name in _ENDS else self.ended_by
        elif not (name in _FROM_TERMINAL and os.isatty(0)):
            self._child.send_signal(number)

    def to(self, child: subprocess.Popen[bytes]) -> None:
        """From here on ``child`` gets them, and the one that came while it was started."""
        self._child = child
        if self.ended_by:
            child.send_signal(self.ended_by)


def _fail(sentence: str, status: int = FAILED) -> int:
    print(f"gpu-admission hold: {sentence}", file=sys.stderr)
    return status
