"""The ways to a server, each on a real one: a socket, TLS, a user with few rights, a watched master."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_admission.budget.ticket import GRANTED, Ticket
from gpu_admission.shared.ledger import SharedLedger
from gpu_admission.shared.opening import open_log
from gpu_admission.shared.operations import Terms
from gpu_admission.shared.redisaddress import COMMANDS, parse
from gpu_admission.shared.redisadvice import advice
from gpu_admission.shared.redislog import RedisLog
from tests.shared.redisserver import Server, needs_server
from tests.waiting import free_port, until, wait_for

pytestmark = needs_server
MAKE_CERTIFICATE = (
    *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=here"),
    *("-addext", "subjectAltName=IP:127.0.0.1"),
)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(*options: str) -> Server:
        servers.append(Server(tmp_path / "redis", *options))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def begun(address: str, *, often: int = 50_000) -> SharedLedger:
    shared = SharedLedger(RedisLog(parse(address), settle=0.0, often=often), Terms((100,)))
    shared.start()
    return shared


def check(address: str) -> None:
    """Bytes that one process takes are taken for another."""
    first, second = begun(address), begun(address)
    ticket = Ticket(60)
    first.ask(ticket)
    until(lambda: ticket.state is GRANTED)
    until(lambda: second.ledger.in_use == 60)
    first.release(ticket)
    until(lambda: second.ledger.in_use == 0)
    for each in (first, second):
        each.stop()


def test_a_socket_of_this_host(serve: Callable[..., Server], tmp_path: Path) -> None:
    socket = tmp_path / "redis.sock"
    serve("--unixsocket", str(socket))
    check(f"unix://{socket}?name=gpu0")
    check(f"unix://{socket}?name=gpu1&db=2")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_tls_with_a_certificate_of_ones_own(serve: Callable[..., Server], tmp_path: Path) -> None:
    key, certificate, port = tmp_path / "key.pem", tmp_path / "cert.pem", free_port()
    subprocess.run(
        [*MAKE_CERTIFICATE, "-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
    )
    files = ["--tls-cert-file", str(certificate), "--tls-key-file", str(key), "--tls-auth-clients", "no"]
    server = serve("--tls-port", str(port), *files)
    wait_for(port)
    check(f"rediss://127.0.0.1:{port}/0?name=gpu0&ssl_ca_certs={certificate}")
    assert server.client().exists("gpu_admission:{gpu0}:run")
    stranger = begun(f"rediss://127.0.0.1:{port}/0?name=gpu0")
    assert "certificate verify failed" in (stranger.away or "")
    stranger.stop()


def test_a_user_who_may_only_use_the_keys_of_a_prefix(serve: Callable[..., Server]) -> None:
    server = serve()
    rights = [f"+{command}" for command in COMMANDS]
    server.do("ACL", "SETUSER", "worker", "on", ">p@ss", "~team:{gpu0}:*", "-@all", *rights)
    server.do("ACL", "SETUSER", "default", "on", ">other", "~*", "+@all")
    address = f"redis://worker:p%40ss@127.0.0.1:{server.port}/1?name=gpu0&prefix=team"
    check(address)
    import redis

    shared = begun(address, often=20)  # a long log is replaced by a snapshot
    for _ in range(60):
        ticket = Ticket(1)
        shared.ask(ticket)
        until(lambda: ticket.state is GRANTED)  # noqa: B023
        shared.release(ticket)
    with redis.Redis(port=server.port, db=1, username="worker", password="p@ss") as client:
        until(lambda: client.exists("team:{gpu0}:snapshot"))
    newcomer = begun(address)
    assert newcomer.ledger.running == 0
    for each in (shared, newcomer):
        each.stop()


def test_a_user_who_may_not_use_them_is_told_which_at_start(serve: Callable[..., Server]) -> None:
    server = serve()
    server.do("ACL", "SETUSER", "worker", "on", ">secret", "~team:*", "+@all")
    with pytest.raises(ValueError, match=r"did not let this process in .*gpu_admission:\{gpu0\}:\*"):
        begun(f"redis://worker:secret@127.0.0.1:{server.port}/0?name=gpu0")


def test_a_user_of_a_master_whose_sentinels_know_no_users(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    server, port = serve(), free_port()
    server.do("ACL", "SETUSER", "worker", "on", ">secret", "~*", "+@all")
    server.do("CONFIG", "SET", "requirepass", "other")
    config = tmp_path / "sentinel.conf"
    watch = f"sentinel monitor mine 127.0.0.1 {server.port} 1\nsentinel auth-pass mine other\n"
    config.write_text(f"port {port}\n{watch}")
    command = ["redis-server", str(config), "--sentinel"]
    sentinel = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        wait_for(port)
        check(f"redis+sentinel://worker:secret@127.0.0.1:{port}/mine/0?name=gpu0")
    finally:
        sentinel.terminate()
        sentinel.wait()


def test_options_and_logins_go_to_the_server_and_to_its_sentinels() -> None:
    address = "rediss+sentinel://me:p%40w@one/m/3?name=a&socket_timeout=1&ssl_ca_certs=/x"
    pool: Any = parse(f"{address}&sentinel_username=s&sentinel_password=q%40").client().connection_pool
    said = [pool.connection_kwargs, pool.sentinel_manager.sentinels[0].connection_pool.connection_kwargs]
    for one, login in zip(said, (("me", "p@w", 3), ("s", "q@", 0)), strict=True):
        assert (one["username"], one["password"], one["db"]) == login
        assert (one["socket_timeout"], one["ssl_ca_certs"]) == (1.0, "/x")
    plain: Any = parse("redis+sentinel://me:pw@one/m?name=a").client().connection_pool
    (sentinel,) = plain.sentinel_manager.sentinels
    assert sentinel.connection_pool.connection_kwargs.get("password") is None


@pytest.mark.parametrize("wrong", ["redis://h/0?name=a&tmeout=1", "redis+sentinel://h/m?name=a&tmeout=1"])
def test_an_option_that_the_client_does_not_have_is_said_at_once(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"shared='redis.*tmeout.*options of redis-py"):
        open_log(wrong)


@pytest.mark.parametrize(
    ("kind", "said", "what_to_do"),
    [
        ("ResponseError", "DB index is out of range", "the number of a database that the server has"),
        ("ResponseError", "SELECT is not allowed in cluster mode", "with database 0"),
        ("MovedError", "1234 10.0.0.2:6379", "name the node that has the keys gpu_admission:{gpu0}:*"),
        ("ClusterDownError", "The cluster is down", "in a cluster"),
    ],
)
def test_a_database_or_a_node_that_is_the_wrong_one_is_said(kind: str, said: str, what_to_do: str) -> None:
    error = getattr(pytest.importorskip("redis.exceptions"), kind)(said)
    assert what_to_do in advice(error, parse("redis://host/99?name=gpu0"))
