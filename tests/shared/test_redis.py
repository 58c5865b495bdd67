"""A Redis stream as the log, on a real server that is harmed in every way that servers are."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from gpu_admission import cli
from gpu_admission.budget.ticket import ENDED, GRANTED, NEW, WAITING, Ticket
from gpu_admission.shared.ledger import SharedLedger
from gpu_admission.shared.operations import RULES, Terms
from gpu_admission.shared.protocol import Entry
from gpu_admission.shared.redisaddress import parse
from gpu_admission.shared.redislog import RedisLog, Writer, _Lost
from tests.shared.redisserver import Server, needs_server
from tests.waiting import free_port, until

pytestmark = [needs_server, pytest.mark.anyio]

TTL = 1.0
TERMS = Terms((100,), lease_ttl=TTL)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "redis")
    yield server
    server.stop()


@pytest.fixture
def join(server: Server) -> Iterator[Callable[..., SharedLedger]]:
    made: list[SharedLedger] = []

    def make(*, terms: Terms = TERMS, settle: float = TTL, often: int = 1000, at: str = "") -> SharedLedger:
        shared = SharedLedger(RedisLog(parse(at or server.address), settle=settle, often=often), terms)
        made.append(shared)
        shared.start()
        return shared

    yield make
    for shared in made:
        for ticket in shared._own:
            shared.release(ticket)
        if not shared.has_left and hasattr(shared.log, "_listener"):
            shared.stop()


def ask(shared: SharedLedger, size: int, *states: object) -> Ticket:
    """Ask, and wait until that has come back as one of ``states``, if any are given."""
    ticket = Ticket(size)
    shared.ask(ticket)
    if states:
        until(lambda: ticket.state in states)
        ticket.started = ticket.state is GRANTED
    return ticket


def settled(shared: SharedLedger) -> bool:
    return shared.away is None and shared.is_in and shared.replica.settles is None


async def test_a_request_is_granted_when_its_ask_has_come_back(join: Callable[..., SharedLedger]) -> None:
    shared = join(settle=0.0)
    ticket = Ticket(30)
    await shared.request(ticket)
    assert ticket.state is GRANTED
    assert ticket.started
    shared.release(ticket)
    until(lambda: ticket.state is ENDED)


def test_bytes_given_back_in_one_process_start_a_waiter_in_another(join: Callable[..., SharedLedger]) -> None:
    first, second = join(settle=0.0), join()
    held = ask(first, 70, GRANTED)
    waiting = ask(second, 40, WAITING)
    first.release(held)
    until(lambda: waiting.state is GRANTED)


def test_a_new_log_grants_nothing_for_a_ttl(join: Callable[..., SharedLedger]) -> None:
    started = time.monotonic()
    shared = join()
    ask(shared, 30, GRANTED)
    assert time.monotonic() - started > TTL * 0.7


def test_a_lease_grows_only_where_it_fits(join: Callable[..., SharedLedger]) -> None:
    shared = join(settle=0.0)
    ticket = ask(shared, 30, GRANTED)
    assert shared.grow(ticket, 90).wait(60.0) is True
    assert shared.grow(ticket, 110).wait(60.0) is False
    assert ticket.bytes == 90


def test_bytes_of_a_killed_process_come_back_within_a_ttl_and_a_half(
    server: Server, join: Callable[..., SharedLedger]
) -> None:
    living = join(settle=0.0)
    with holder(server, 60):
        until(lambda: living.ledger.in_use == 60)
    with living.lock:
        died = living.now()
    waiting = ask(living, 100, WAITING)
    until(lambda: waiting.state is GRANTED)
    assert waiting.granted_at - died < 1.5 * TTL + 0.5, "by the log's time; half a second for the last look"


def test_a_process_stopped_for_three_ttls_joins_again_and_declares_what_runs(
    server: Server, join: Callable[..., SharedLedger]
) -> None:
    living = join(settle=0.0)
    with holder(server, 60) as process:
        until(lambda: living.ledger.in_use == 60)
        process.send_signal(signal.SIGSTOP)
        other = ask(living, 70)
        until(lambda: other.state is GRANTED)
        time.sleep(TTL)
        process.send_signal(signal.SIGCONT)
        until(lambda: living.ledger.in_use == 130)
        assert ask(living, 1, WAITING).state is WAITING
        living.release(other)


@pytest.mark.parametrize("harm", [("FLUSHALL",), ("DEL", "gpu_admission:{gpu0}:log")])
def test_a_log_that_is_gone_is_unknown_not_empty(
    server: Server, join: Callable[..., SharedLedger], harm: tuple[str, ...]
) -> None:
    first, second = join(settle=0.0), join()
    held = ask(first, 60, GRANTED)
    for each in (first, second):
        each.log._settle = TTL  # type: ignore[attr-defined]
    until(lambda: second.ledger.in_use == 60)
    server.do(*harm)
    other = ask(second, 60)
    until(lambda: second.replica.settles is not None)
    until(lambda: settled(second) and settled(first))
    assert other.state is WAITING
    assert second.ledger.in_use == 60
    first.release(held)
    until(lambda: other.state is GRANTED)


def test_connections_that_are_killed_are_made_again(
    server: Server, join: Callable[..., SharedLedger]
) -> None:
    shared = join(settle=0.0)
    held = ask(shared, 60, GRANTED)
    for _ in range(5):
        server.do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        ticket = ask(shared, 30, GRANTED)
        shared.release(ticket)
    shared.release(held)
    until(lambda: shared.ledger.in_use == 0)


def test_a_server_that_restarts_empty_is_recovered_within_five_seconds(
    server: Server, join: Callable[..., SharedLedger]
) -> None:
    first, second = join(settle=0.0), join()
    ask(first, 60, GRANTED)
    server.kill()
    until(lambda: first.away is not None)
    assert "can't be reached" in (first.away or "")
    waiting = ask(second, 30)
    assert waiting.state is NEW
    server.start()
    started = time.monotonic()
    until(lambda: first.away is None and second.away is None)
    assert time.monotonic() - started < 5
    until(lambda: waiting.state is GRANTED)
    until(lambda: second.ledger.in_use == 90)


def test_what_ended_while_a_server_restarted_with_its_log_is_told_it(tmp_path: Path) -> None:
    server = Server(tmp_path / "aof", "--appendonly", "yes", "--appendfsync", "always")
    shared = SharedLedger(RedisLog(parse(server.address), settle=0.0), TERMS)
    shared.start()
    held = ask(shared, 60, GRANTED)
    server.kill()
    until(lambda: shared.away is not None)
    shared.release(held)
    server.start()
    until(lambda: shared.away is None and shared.is_in)
    until(lambda: shared.ledger.in_use == 0)
    shared.stop()
    server.stop()


def test_a_server_that_stands_still_is_away_and_comes_back(
    server: Server, join: Callable[..., SharedLedger]
) -> None:
    shared = join(settle=0.0)
    held = ask(shared, 60, GRANTED)
    server.pause()
    until(lambda: shared.away is not None)
    waiting = ask(shared, 30)
    server.resume()
    until(lambda: waiting.state is GRANTED)
    shared.release(held)
    until(lambda: shared.ledger.in_use == 30)


def test_a_failover_that_lost_the_tail_begins_a_new_epoch(
    server: Server, tmp_path: Path, join: Callable[..., SharedLedger]
) -> None:
    other = Server(tmp_path / "other")
    other.do("REPLICAOF", "127.0.0.1", server.port)
    first, second = join(settle=0.0), join()
    for each in (first, second):
        each.log._settle = TTL  # type: ignore[attr-defined]
    ask(first, 30, GRANTED)
    until(lambda: int(other.do("XLEN", "gpu_admission:{gpu0}:log") or 0) >= 5)
    other.do("REPLICAOF", "NO", "ONE")  # from here on it lacks what the master gets
    ask(second, 60, GRANTED)
    until(lambda: first.ledger.in_use == 90)
    server.do("REPLICAOF", "127.0.0.1", other.port)
    until(lambda: first.away is not None and second.away is not None)
    waiting = ask(first, 60)
    until(lambda: server.client().info("replication")["master_link_status"] == "up")
    server.do("REPLICAOF", "NO", "ONE")
    until(lambda: settled(first) and settled(second))
    until(lambda: first.ledger.in_use == 90)
    assert waiting.state is WAITING
    other.stop()


def test_a_log_whose_server_s_clock_was_set_back_is_begun_anew_and_its_dead_are_found(
    server: Server, join: Callable[..., SharedLedger]
) -> None:
    """Else its time would stand still, and nobody would ever be dead, until the clock has caught up."""
    living = join(settle=0.0)
    living.log._settle = TTL  # type: ignore[attr-defined]
    held = ask(living, 30, GRANTED)
    with holder(server, 60):
        until(lambda: living.ledger.in_use == 90)
        ahead = int((time.time() + 300) * 1000)
        server.do("XADD", "gpu_admission:{gpu0}:log", f"{ahead}-0", "p", "")
    waiting = ask(living, 70)
    until(lambda: waiting.state is GRANTED)
    assert living.ledger.in_use == 100
    living.release(held)


def test_a_server_out_of_memory_is_away_until_it_has_some(
    server: Server, join: Callable[..., SharedLedger]
) -> None:
    shared = join(settle=0.0)
    server.do("CONFIG", "SET", "maxmemory", "1")
    until(lambda: shared.away is not None)
    ticket = ask(shared, 30)
    server.do("CONFIG", "SET", "maxmemory", "0")
    until(lambda: ticket.state is GRANTED)


def test_a_server_that_may_evict_the_log_is_warned_of(
    server: Server, join: Callable[..., SharedLedger], caplog: pytest.LogCaptureFixture
) -> None:
    server.do("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    with caplog.at_level(logging.WARNING, "gpu_admission"):
        join()
    assert "maxmemory-policy=allkeys-lru" in caplog.text


def test_a_wrong_password_is_said_at_start(server: Server, join: Callable[..., SharedLedger]) -> None:
    server.do("CONFIG", "SET", "requirepass", "secret")
    with pytest.raises(ValueError, match=r"shared budget redis://127\.0\.0\.1"):
        join()
    with_password = server.address.replace("//", "//:secret@")
    assert ask(join(settle=0.0, at=with_password), 10, GRANTED)


def test_a_server_that_is_not_there_at_start_is_away_and_joined_when_it_comes(
    tmp_path: Path, server: Server, join: Callable[..., SharedLedger]
) -> None:
    server.kill()
    shared = join(settle=0.0)
    assert shared.away
    ticket = ask(shared, 10)
    server.start()
    until(lambda: ticket.state is GRANTED)


def test_a_long_log_is_cut_and_a_newcomer_begins_with_the_snapshot(
    server: Server, join: Callable[..., SharedLedger], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_admission.shared.redislog._KEPT", 200)
    first, second = join(settle=0.0, often=60), join(often=60)
    held = ask(first, 70, GRANTED)
    for _ in range(240):
        first.release(ask(first, 1, GRANTED))
    until(lambda: second.ledger.in_use == 70)
    assert int(server.do("XLEN", "gpu_admission:{gpu0}:log")) < 400
    newcomer = join(often=60)
    assert newcomer.ledger.in_use == 70
    assert newcomer.log._read_since < 3 * 60  # type: ignore[attr-defined]
    waiting = ask(newcomer, 40, WAITING)
    first.release(held)
    until(lambda: waiting.state is GRANTED)


@pytest.mark.parametrize("count", [400, pytest.param(10_000, marks=pytest.mark.slow)])
def test_an_idle_budget_costs_a_server_few_commands(
    server: Server, join: Callable[..., SharedLedger], count: int
) -> None:
    members = [join(settle=0.0, terms=Terms((100,), max_waiting=20_000)) for _ in range(4)]
    ask(members[0], 100, GRANTED)
    waiting = [ask(members[n % 4], 50) for n in range(count)]
    until(lambda: all(ticket.state is WAITING for ticket in waiting))
    before, at = int(server.client().info()["total_commands_processed"]), time.monotonic()
    time.sleep(3)
    spent = int(server.client().info()["total_commands_processed"]) - before
    assert spent / (time.monotonic() - at) < 20


def test_an_address_says_what_it_lacks() -> None:
    for wrong, said in {
        "redis://host/0": "must name the budget",
        "redis://host/0/a/b": "must name the budget",
        "http://host/gpu0": "scheme must be one of",
        "redis+sentinel://one,two?name=x": "names no master",
        "redis://host/0?name=x&prefix=a b": "prefix= must be",
    }.items():
        with pytest.raises(ValueError, match=said):
            parse(wrong)


def test_addresses_of_every_kind_are_read() -> None:
    plain = parse("rediss://me:secret@host:6380/1/gpu0?ssl_cert_reqs=none")
    assert (plain.name, plain.url) == ("gpu0", "rediss://me:secret@host:6380/1?ssl_cert_reqs=none")
    assert "secret" not in plain.where
    assert plain.key("log") == "gpu_admission:{gpu0}:log"
    at_socket = parse("unix:///run/redis.sock?name=gpu0&db=2")
    assert at_socket.url == "unix:///run/redis.sock?db=2"
    watched = parse("redis+sentinel://me:pw@one,two:26380/mymaster/3?name=gpu0&prefix=x")
    assert watched.sentinels == (("one", 26379), ("two", 26380))
    assert (watched.service, watched.prefix) == ("mymaster", "x")
    assert watched.client().connection_pool.connection_kwargs["db"] == 3
    assert parse("rediss+sentinel://one/m?name=a").client()
    several = parse("redis+sentinel://one:26380,two:26381/m/0?name=a")
    assert several.sentinels == (("one", 26380), ("two", 26381))


def test_a_master_is_found_through_its_sentinel(server: Server, tmp_path: Path) -> None:
    port = free_port()
    config = tmp_path / "sentinel.conf"
    config.write_text(f"port {port}\nsentinel monitor mine 127.0.0.1 {server.port} 1\n")
    sentinel = subprocess.Popen(["redis-server", str(config), "--sentinel"], stdout=subprocess.DEVNULL)
    try:
        address = parse(f"redis+sentinel://127.0.0.1:{port}/mine?name=gpu0")
        shared = SharedLedger(RedisLog(address, settle=0.0), TERMS)
        shared.start()
        until(lambda: shared.away is None)
        ticket = ask(shared, 10, GRANTED)
        shared.release(ticket)
        shared.stop()
    finally:
        sentinel.terminate()
        sentinel.wait()


def test_a_failover_is_a_new_epoch_even_for_one_that_misses_nothing(
    server: Server, join: Callable[..., SharedLedger]
) -> None:
    """It can't know what others have read that the new master lacks."""
    shared = join(settle=0.0)
    shared.log._settle = TTL  # type: ignore[attr-defined]
    ask(shared, 30, GRANTED)
    server.do("REPLICAOF", "127.0.0.1", "1")
    until(lambda: shared.away is not None)
    server.do("REPLICAOF", "NO", "ONE")
    until(lambda: shared.replica.settles is not None)
    until(lambda: settled(shared) and shared.ledger.in_use == 30)


class holder:  # noqa: N801
    """A process that holds ``size`` bytes inside the block, and is killed at its end."""

    def __init__(self, server: Server, size: int) -> None:
        self.command = [sys.executable, "-c", HOLDS, server.address, str(size), str(TTL)]

    def __enter__(self) -> subprocess.Popen[str]:
        self.process = subprocess.Popen(
            self.command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONWARNINGS": ""}
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "granted\n"
        return self.process

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


HOLDS = """
import sys, time
from gpu_admission.budget.ticket import Ticket
from gpu_admission.shared.ledger import SharedLedger
from gpu_admission.shared.operations import Terms
from gpu_admission.shared.redisaddress import parse
from gpu_admission.shared.redislog import RedisLog
shared = SharedLedger(RedisLog(parse(sys.argv[1])), Terms((100,), lease_ttl=float(sys.argv[3])))
shared.start()
ticket = Ticket(int(sys.argv[2]))
shared.ask(ticket)
while ticket.state.value != "granted":
    time.sleep(0.001)
ticket.started = True
print(ticket.state.value, flush=True)
time.sleep(60)
"""


def test_a_server_that_accepts_and_never_answers_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_admission.shared.redislog._START_WITHIN", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"redis://127.0.0.1:{listener.getsockname()[1]}/0?name=gpu0&socket_timeout=0.2"
        shared = SharedLedger(RedisLog(parse(address)), TERMS)
        shared.start()
        assert "did not answer within 0.05 s: see that shared= names" in (shared.away or "")
        shared.stop()


class LateEvent(threading.Event):
    """Set in time, and yet its wait says that it was not."""

    def wait(self, timeout: float | None = None) -> bool:
        super().wait(timeout)
        return False


def test_a_server_that_answers_at_the_last_moment_is_not_away(server: Server) -> None:
    log = RedisLog(parse(server.address))
    log._tried = LateEvent()
    shared = SharedLedger(log, TERMS)
    shared.start()
    assert shared.away is None
    shared.stop()


@pytest.mark.parametrize(
    "fields", [("place", "PLACE", "state", "junk"), ("place", "PLACE"), ("place", "junk")]
)
def test_a_snapshot_that_makes_no_sense_is_none(
    server: Server, join: Callable[..., SharedLedger], fields: tuple[str, ...]
) -> None:
    first = join(settle=0.0, often=10)
    held = ask(first, 60, GRANTED)
    place = server.do("XREVRANGE", "gpu_admission:{gpu0}:log", "+", "-", "COUNT", "1")[0][0]
    server.do(
        "HSET", "gpu_admission:{gpu0}:snapshot", *(place if each == "PLACE" else each for each in fields)
    )
    second = join()
    until(lambda: second.is_in and second.ledger.in_use == 60)
    assert not second.settles, "the log itself is whole"
    for _ in range(10):
        second.release(ask(second, 1, GRANTED))
    until(lambda: second.away is None and first.away is None and first.ledger.in_use == 60)
    first.release(held)


def test_a_log_of_which_only_a_snapshot_without_sense_is_left_is_begun_anew(
    server: Server, join: Callable[..., SharedLedger]
) -> None:
    first = join(settle=0.0)
    held = ask(first, 60, GRANTED)
    last = server.do("XREVRANGE", "gpu_admission:{gpu0}:log", "+", "-", "COUNT", "1")[0][0]
    server.do("HSET", "gpu_admission:{gpu0}:snapshot", "place", last, "state", "junk")
    server.do("XTRIM", "gpu_admission:{gpu0}:log", "MINID", last)
    second = join()
    until(lambda: second.is_in and second.ledger.in_use == 60 and first.is_in)
    assert ask(second, 60, WAITING)
    first.release(held)


def test_a_snapshot_by_other_rules_is_told_from_one_that_makes_no_sense(
    server: Server, join: Callable[..., SharedLedger]
) -> None:
    first = join(settle=0.0)
    ask(first, 60, GRANTED)
    last = server.do("XREVRANGE", "gpu_admission:{gpu0}:log", "+", "-", "COUNT", "1")[0][0]
    state = msgspec.msgpack.encode((RULES + 1, "of", "another", "shape"))
    server.do("HSET", "gpu_admission:{gpu0}:snapshot", "place", last, "state", state)
    with pytest.raises(ValueError, match=f"follows version {RULES + 1} of the rules"):
        join()
    assert first.is_in


def test_a_reader_that_fails_in_a_way_that_nobody_knows_begins_again(
    join: Callable[..., SharedLedger], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_admission.shared.redislog._LONGEST_PAUSE", 0.1)
    shared = join(settle=0.0)
    real, failures = shared._member.received, [KeyError("what?")]

    def fail_once(entries: Sequence[Entry]) -> None:
        if failures:
            raise failures.pop()
        real(entries)

    monkeypatch.setattr(shared._member, "received", fail_once)
    assert ask(shared, 10, GRANTED)
    assert "reading the shared budget redis://127.0.0.1" in caplog.text


class Answers:
    """A client that answers what it is told, to whatever is asked."""

    def __init__(self, **answers: object) -> None:
        self.answers = answers

    def __getattr__(self, name: str) -> Callable[..., object]:
        return lambda *arguments, **options: self.answers[name]


def log_at(place: bytes) -> RedisLog:
    log = RedisLog(parse("redis://h/0?name=gpu0"), often=10)
    log._place = place
    return log


def test_a_stream_that_vanishes_while_it_is_begun_is_lost_not_empty() -> None:
    log = log_at(b"5-0")
    with pytest.raises(_Lost):
        log._probe(Answers(execute_command=None))
    with pytest.raises(_Lost):
        log._read_up_to(Answers(xread=[]), b"6-0")


def test_one_that_stood_still_until_the_log_was_cut_behind_it_begins_again() -> None:
    log = log_at(b"5-0")
    with pytest.raises(_Lost):
        log._read(Answers(xread=[], xrange=[]), Answers())  # type: ignore[arg-type]


def test_a_log_whose_clock_only_stands_still_for_a_moment_is_kept() -> None:
    log = log_at(b"5000-0")
    clock = Answers(time=(4, 0), xrange=[1])
    assert not log._stands_still(clock, 100.0)
    assert not log._stands_still(clock, 110.0), "a second behind is less than half of settle"
    assert not log._stands_still(Answers(time=(4, 0)), 110.5), "asked only now and then"


@pytest.mark.parametrize("theirs", [b"4-0", b"6-0"])
def test_a_snapshot_that_another_process_has_made_meanwhile_is_left_alone(theirs: bytes) -> None:
    log = log_at(b"5-0")
    log._save(Answers(hget=theirs, hstrlen=640))
    assert log._read_since == -10, "and the next is made later, the larger this one was"


def test_a_snapshot_that_another_process_makes_at_the_same_time_is_kept(
    server: Server, join: Callable[..., SharedLedger], monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = join(settle=0.0)
    key, mine = "gpu_admission:{gpu0}:snapshot", shared._member.snapshot

    def made_by_both() -> bytes:
        server.do("HSET", key, "place", "1-1", "state", "theirs")
        return mine()

    monkeypatch.setattr(shared._member, "snapshot", made_by_both)
    with server.client() as client:
        shared.log._save(client)  # type: ignore[attr-defined]
    assert server.do("HGET", key, "state") == b"theirs"


def test_a_reader_that_stops_its_own_log_does_not_wait_for_itself() -> None:
    log = log_at(b"5-0")
    log._thread = threading.current_thread()
    log.stop()


def test_a_connection_that_breaks_while_results_are_looked_at_is_a_failure() -> None:
    client = _Client()
    writer = Writer(client, "stream")
    writer.add(b"x", b"1-0")
    writer.look()
    assert isinstance(writer.failure, ConnectionError)
    writer.add(b"y", b"2-0")  # goes nowhere: what is not in the log yet is said again on a new connection
    assert len(client.commands) == 1
    writer.close()


def test_a_command_that_can_not_be_written_is_a_failure() -> None:
    writer = Writer(_Client(most=0), "stream")
    writer.add(b"x", b"1-0")
    assert isinstance(writer.failure, ConnectionError)


class _Client:
    """Gives out a connection that takes a command and then breaks."""

    @property
    def connection_pool(self) -> object:
        return self

    def get_connection(self) -> object:
        return self

    def __init__(self, most: int = 1) -> None:
        self.commands: list[object] = []
        self._most = most

    def send_command(self, *command: object) -> None:
        if len(self.commands) == self._most:
            raise ConnectionError
        self.commands.append(command)

    def can_read(self, timeout: float) -> bool:
        raise ConnectionError

    def disconnect(self) -> None:
        pass

    def release(self, connection: object) -> None:
        pass


@pytest.mark.parametrize("action", [("show",), ("drain",), ("evict", "worker.1")])
def test_an_operators_typo_makes_no_budget(
    server: Server, action: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    address = server.address.replace("gpu0", "gpu00")
    assert cli.main(["budget", *action, address]) == 1
    assert "(gpu00) yet: write it as they do in shared=" in capsys.readouterr().err
    with server.client() as client:
        assert client.keys("*gpu00*") == []


def test_a_server_that_does_not_answer_may_have_been_used() -> None:
    assert not RedisLog(parse("redis://127.0.0.1:1/0?name=gpu0")).missing()


@pytest.mark.parametrize("action", [("show",), ("drain",), ("evict", "worker.1")])
def test_a_budget_that_has_lost_a_key_is_not_said_to_be_unused_nor_begun_anew(
    server: Server,
    join: Callable[..., SharedLedger],
    action: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    shared = join(settle=0.0)
    ask(shared, 30, GRANTED)
    server.do("DEL", "gpu_admission:{gpu0}:run")
    assert cli.main(["budget", *action, server.address]) == 1
    said = capsys.readouterr().err
    assert "the key gpu_admission:{gpu0}:run of the budget" in said
    assert "then the budget begins anew, and starts nothing for lease_ttl" in said
    assert ask(shared, 30, GRANTED), "whoever takes part goes on"
    join()
    until(lambda: shared.replica.settles is not None)
    assert cli.main(["budget", "show", server.address]) == 0


def shift(server: Server, seconds: int) -> None:
    """Have all that is in the log said ``seconds`` earlier."""
    log, run = "gpu_admission:{gpu0}:log", "gpu_admission:{gpu0}:run"
    with server.client() as client:
        said = client.xrange(log)
        client.delete(log)
        for place, fields in said:
            milliseconds, _, number = place.partition(b"-")
            earlier = client.xadd(log, fields, b"%d-%b" % (int(milliseconds) - seconds * 1000, number))
            if place == client.hget(run, "opened"):
                client.hset(run, "opened", earlier)


@pytest.mark.parametrize(("lease_ttl", "state"), [(100.0, "alive"), (10.0, "dead")])
def test_show_counts_to_the_servers_now_where_nobody_has_said_anything_since(
    server: Server, lease_ttl: float, state: str, capsys: pytest.CaptureFixture[str]
) -> None:
    log = RedisLog(parse(server.address), settle=60.0)
    silent = SharedLedger(log, Terms((100,), lease_ttl=lease_ttl), name="worker")
    silent.start(pulse=False)
    until(lambda: silent.is_in)
    log.stop()
    shift(server, 40)
    assert cli.main(["budget", "show", server.address]) == 0
    said = capsys.readouterr().out
    assert re.search(rf"worker\.1 .* (4\d) s +(4\d) s +{state}", said)
    assert re.search(r"0 waiting \(0 B\), starts nothing for (1\d|20) s", said)
    shift(server, 40)
    assert cli.main(["budget", "show", server.address]) == 0
    assert "starts nothing" not in capsys.readouterr().out
