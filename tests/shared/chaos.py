"""Processes on one budget, and all that can be done to them and to where it lies. No test lives here.

A ``Round`` is some workers on a folder or a server, one harm after another, and at the end the death
of all that are left. What the workers say is added up by ``audit``; a ``Reader`` follows the log.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import resource
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from gpu_admission.budget.ticket import GRANTED, State, Ticket
from gpu_admission.shared.command import Onlooker
from gpu_admission.shared.ledger import SharedLedger
from gpu_admission.shared.opening import open_log
from gpu_admission.shared.operations import Gone, Terms
from gpu_admission.shared.protocol import Entry
from tests.shared import chaosworker
from tests.shared.audit import Audit
from tests.shared.chaosworker import CAPACITY, Order
from tests.shared.proxy import Proxy
from tests.shared.redisserver import Server
from tests.waiting import LONGEST, until

TTL = 2.0
TERMS = Terms((CAPACITY,), max_waiting=1000, lease_ttl=TTL)
_STREAM = "gpu_admission:{gpu0}:log"


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Reader(Onlooker):
    """Follows the log, and counts at each entry what its tickets hold."""

    def __init__(self, where: str) -> None:
        super().__init__(open_log(where, lease_ttl=TTL))
        self.entries = 0
        self.most = 0
        self.wrong: list[str] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reader")

    def start(self) -> None:
        self.log.start("reader", self)
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()
        self.log.stop()

    def _run(self) -> None:
        while not self._is_over.wait(0.02):
            self.log.catch_up()

    def received(self, entries: Sequence[Entry]) -> None:
        for at, data in entries:
            before = self.replica.at
            changed = self.replica.apply(at, data)
            self.entries += 1
            if at < before and at > 0 and self.replica.epoch == 0:
                self.wrong.append(f"time went back from {before} to {at}")
            self._count(changed)

    def _count(self, changed: Sequence[Ticket]) -> None:
        ledger = self.replica.ledger
        if ledger is None:
            return
        tickets = [t for member in self.replica.members for t in member.tickets.values()]
        held = sum(ticket.bytes for ticket in tickets if ticket.state is GRANTED)
        if held != ledger.in_use:
            self.wrong.append(f"{held} are held, and {ledger.in_use} counted, at {self.replica.at}")
        if any(ticket.state is GRANTED for ticket in changed):
            self.most = max(self.most, held)
            if held > CAPACITY:
                self.wrong.append(f"a grant made it {held} at {self.replica.at}")


_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.shared.chaosworker"])


class Workers:
    """Some processes on one budget, and the books on what is done to them."""

    def __init__(self, folder: Path, ttl: float = TTL) -> None:
        self.audit = Audit(folder)
        self.running: dict[int, ForkServerProcess] = {}
        self.addresses: dict[int, str] = {}
        self._seeds = 0
        self._ttl = ttl

    def add(self, where: str, *, flaw: str = "", tasks: int = 2, at_most: float = 0.03) -> int:
        seed = self._seeds
        self._seeds += 1
        order = Order(where, str(self.report(seed)), seed, self._ttl, tasks, flaw, at_most)
        process = _context.Process(target=chaosworker.main, args=(order,), daemon=True)
        process.start()
        self.running[seed], self.addresses[seed] = process, where
        return seed

    def report(self, seed: int) -> Path:
        return self.audit.folder / f"{seed}.txt"

    def size(self, seed: int) -> int:
        with contextlib.suppress(FileNotFoundError):
            return self.report(seed).stat().st_size
        return 0

    def wait_until_they_work(self, seconds: float = LONGEST) -> float:
        """All of them begin something new."""
        before = {seed: self.size(seed) for seed in self.running}
        wanted = {seed: before[seed] + 120 for seed in before}
        return until(
            lambda: all(self.size(seed) > size for seed, size in wanted.items()),
            seconds,
            f"they did not go on: {before} { ({seed: self.size(seed) for seed in before}) }",
        )

    def signal(self, seed: int, number: int) -> None:
        process = self.running[seed]
        assert process.pid is not None
        os.kill(process.pid, number)

    def kill(self, *seeds: int) -> None:
        """All at once."""
        for seed in seeds:
            self.audit.killed_at[seed] = now()
            self.signal(seed, signal.SIGKILL)
        for seed in seeds:
            self.running.pop(seed).join()

    def leave(self, *seeds: int) -> None:
        """They end by themselves, and all of their work has ended then."""
        for seed in seeds:
            until(lambda seed=seed: self.size(seed) > 0, 30, "it did not begin")  # type: ignore[misc]
            self.signal(seed, signal.SIGTERM)
        for seed in seeds:
            process = self.running.pop(seed)
            process.join(30)
            assert process.exitcode == 0, f"worker {seed} ended with {process.exitcode}"

    def stop_for(self, seed: int, seconds: float, *, counted: float | None) -> None:
        """``counted``: seconds after which its bytes may be given to others, if ever."""
        stopped = now()
        self.signal(seed, signal.SIGSTOP)
        if counted is not None:
            self.audit.stood_still.append((seed, stopped, stopped + counted))
        time.sleep(seconds)
        self.signal(seed, signal.SIGCONT)

    def end(self) -> None:
        for process in self.running.values():
            process.kill()
            process.join()


class Round:
    """Workers on ``where``, one member that only waits, and a reader of the log."""

    def __init__(
        self, kind: str, folder: Path, chance: random.Random, *options: str, through_proxy: bool = False
    ) -> None:
        self.kind, self.folder, self.chance = kind, folder, chance
        self._open = ExitStack()
        self.server = self.serve("redis", *options) if kind == "redis" else None
        self.where = str(folder / "gpu0") if self.server is None else self.server.address
        self.proxies: list[Proxy] = []
        if self.server is not None and through_proxy:
            self.where = self.proxy(self.server).address
        reports = folder / "reports"
        reports.mkdir()
        self.workers = Workers(reports)
        self._open.callback(self.workers.end)
        self.waiter = SharedLedger(open_log(self.where, lease_ttl=TTL), TERMS)
        self.reader = Reader(self.where)

    def serve(self, name: str, *options: str) -> Server:
        server = Server(self.folder / name, "--enable-debug-command", "yes", *options)
        self._open.callback(server.stop)
        return server

    @contextmanager
    def begun(self, count: int, where: str = "", **options: Any) -> Iterator[None]:
        with self._open:
            self.waiter.start()
            self.reader.start()
            self._open.callback(self.reader.stop)
            self._open.callback(self.waiter.stop)
            for _ in range(count):
                self.workers.add(where or self.where, **options)
            self.workers.wait_until_they_work()
            yield

    def pick(self) -> int:
        return self.chance.choice(list(self.workers.running))

    def proxy(self, server: Server) -> Proxy:
        proxy = Proxy(server.port)
        self.proxies.append(proxy)
        self._open.callback(proxy.stop)
        return proxy

    def all_back(self, seconds: float) -> float:
        """Kill all, and wait until everything can be had again: the log's time from their death on."""
        ticket = Ticket(CAPACITY)
        self.waiter.ask(ticket)
        self.workers.kill(*self.workers.running)
        with self.waiter.lock:
            died, began = self.waiter.now(), time.monotonic()
        while ticket.state is not State.GRANTED:
            if ticket.state is State.REFUSED:
                ticket = Ticket(CAPACITY)
                self.waiter.ask(ticket)
            assert time.monotonic() - began < seconds, f"not all came back: {self.waiter.members()}"
            time.sleep(0.002)
        self.waiter.release(ticket)
        until(lambda: not self.waiter.ledger.in_use, what="it does not end at zero")
        return ticket.granted_at - died


# what is done to the workers


def killed(r: Round) -> None:
    seed = r.pick()
    where = r.workers.addresses[seed]
    r.workers.kill(seed)
    r.workers.add(where)


def left(r: Round) -> None:
    seed = r.pick()
    where = r.workers.addresses[seed]
    r.workers.leave(seed)
    r.workers.add(where)


def stopped_for_three_ttls(r: Round) -> None:
    """On a folder it keeps its bytes, however long it stands still."""
    earliest = None if r.kind == "folder" else 1.3 * TTL  # it may have beaten a fifth of a ttl ago
    r.workers.stop_for(r.pick(), 3 * TTL, counted=earliest)


def stopped_for_a_moment(r: Round) -> None:
    r.workers.stop_for(r.pick(), r.chance.uniform(0.05, 0.5), counted=None)


def evicted(r: Round) -> None:
    """By an operator, who is wrong: it lives and works."""
    living = [name for name in r.reader.replica.members.living if name != r.waiter.member]
    if living:
        r.reader.say(Gone(r.chance.choice(living), certain=False))


def clock_ahead(r: Round) -> None:
    r.workers.signal(r.pick(), signal.SIGUSR1)


def clock_back(r: Round) -> None:
    r.workers.signal(r.pick(), signal.SIGUSR2)


# what is done to a folder


def _logs(r: Round) -> list[Path]:
    return sorted(Path(r.where).glob("log-*"))


def log_removed(r: Round) -> None:
    for path in _logs(r):
        path.unlink(missing_ok=True)


def folder_removed(r: Round) -> None:
    shutil.rmtree(r.where, ignore_errors=True)


def log_cut_short(r: Round) -> None:
    """By hand: what no process does. Who had not read all of it can't know that."""
    for path in _logs(r):
        with contextlib.suppress(FileNotFoundError):
            os.truncate(path, r.chance.randrange(path.stat().st_size))


def junk_written(r: Round) -> None:
    """What a writer leaves that dies in the middle of a record."""
    for path in _logs(r):
        with contextlib.suppress(FileNotFoundError), path.open("ab") as log:
            log.write(
                r.chance.choice((b"\x93gA\xe1", b"\x00" * 7, b"\x93gA\xe1\xff\xff\x00\x00" + b"x" * 30))
            )


def wake_ups_lost(r: Round) -> None:
    for path in Path(r.where).glob("*.wake"):
        path.unlink(missing_ok=True)


def locks_removed(r: Round) -> None:
    for path in Path(r.where).glob("*.lock"):
        path.unlink(missing_ok=True)


def _limit_files(r: Round, seeds: Sequence[int]) -> None:
    most = max((path.stat().st_size for path in _logs(r)), default=0) + r.chance.randrange(200)
    for seed in seeds:
        resource.prlimit(
            r.workers.running[seed].pid or 0, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY)
        )
    time.sleep(r.chance.uniform(0.3, 1.0))
    for seed in seeds:
        endless = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(r.workers.running[seed].pid or 0, resource.RLIMIT_FSIZE, endless)


def disk_full_for_one(r: Round) -> None:
    _limit_files(r, [r.pick()])


def disk_full_for_all(r: Round) -> None:
    _limit_files(r, list(r.workers.running))


# what is done to a server


def _server(r: Round) -> Server:
    assert r.server is not None
    return r.server


def connections_killed(r: Round) -> None:
    for _ in range(3):
        _server(r).do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        time.sleep(0.1)


def clients_paused(r: Round) -> None:
    _server(r).do("CLIENT", "PAUSE", int(r.chance.uniform(0.2, 2.0) * TTL * 1000), "ALL")


def server_sleeps(r: Round) -> None:
    _server(r).do("DEBUG", "SLEEP", r.chance.uniform(0.2, 0.7) * TTL)


def server_stands_still(r: Round) -> None:
    _server(r).pause()
    time.sleep(2 * TTL)
    _server(r).resume()


def flushed(r: Round) -> None:
    _server(r).do("FLUSHALL")


def deleted(r: Round) -> None:
    _server(r).do("DEL", r.chance.choice((_STREAM, "gpu_admission:{gpu0}:run")))


def restarted(r: Round) -> None:
    """With what it has kept: nothing, or its append-only file."""
    _server(r).kill()
    time.sleep(r.chance.uniform(0.0, TTL))
    _server(r).start()


def evicting(r: Round) -> None:
    """Memory runs short on a server that throws away what it has."""
    _server(r).do("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    _server(r).do("CONFIG", "SET", "maxmemory", "1mb")
    time.sleep(r.chance.uniform(0.1, 1.0))
    _server(r).do("CONFIG", "SET", "maxmemory", "0")


def out_of_memory(r: Round) -> None:
    _server(r).do("CONFIG", "SET", "maxmemory", "1mb")
    time.sleep(r.chance.uniform(0.1, 1.0))
    _server(r).do("CONFIG", "SET", "maxmemory", "0")


def cut_off(r: Round) -> None:
    """One process can't reach the server for two ttls, and works on."""
    proxy = r.proxy(_server(r))
    r.workers.add(proxy.address)
    r.workers.wait_until_they_work()
    proxy.cut()
    time.sleep(2 * TTL)
    proxy.mend()


def failed_over(r: Round) -> None:
    """The server dies, and the one that takes its place lacks what was said last."""
    other = r.serve("other")
    first = _server(r)
    other.do("REPLICAOF", "127.0.0.1", first.port)
    until(lambda: other.client().info("replication")["master_link_status"] == "up", 10, "no replica")
    time.sleep(0.2)
    other.do("REPLICAOF", "NO", "ONE")
    time.sleep(r.chance.uniform(0.0, 0.3))
    first.kill()
    for proxy in r.proxies:
        proxy.point_at(other.port)
    r.server = other


def read_only(r: Round) -> None:
    _server(r).do("REPLICAOF", "127.0.0.1", "1")
    time.sleep(r.chance.uniform(0.1, 1.0))
    _server(r).do("REPLICAOF", "NO", "ONE")


def server_clock_ahead_and_back(r: Round) -> None:
    """By 300 s, on from there for two ttls, and back: an id is never below the last one."""
    end = time.monotonic() + 2 * TTL
    while time.monotonic() < end:
        at = int((time.time() + 300) * 1000)
        with contextlib.suppress(Exception):  # another was faster
            _server(r).do("XADD", _STREAM, "NOMKSTREAM", f"{at}-0", "p", "")
        time.sleep(0.02)


TO_WORKERS = (
    killed,
    left,
    stopped_for_three_ttls,
    stopped_for_a_moment,
    evicted,
    clock_ahead,
    clock_back,
)
TO_A_FOLDER = (
    log_removed,
    folder_removed,
    junk_written,
    wake_ups_lost,
    locks_removed,
    disk_full_for_one,
    disk_full_for_all,
)
TO_A_SERVER = (
    connections_killed,
    cut_off,
    failed_over,
    clients_paused,
    server_sleeps,
    server_stands_still,
    flushed,
    deleted,
    restarted,
    evicting,
    out_of_memory,
    read_only,
    server_clock_ahead_and_back,
)
HARMS = {"folder": TO_WORKERS + TO_A_FOLDER, "redis": TO_WORKERS + TO_A_SERVER}
