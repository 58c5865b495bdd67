"""Clients that wait to be asked, that send slowly and that read nothing, over real connections."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from gpu_admission import Admission, GPUAdmission
from gpu_admission.types import Receive, Scope, Send
from tests.cases.harness import StreamedCost, cost
from tests.cases.servers import SERVERS, serving
from tests.cases.test_servers import Site

SHIELDED = {"hypercorn-trio"}
"""Servers whose ``send`` can't be cancelled: there only the client's leaving ends it."""
ASK_BY_THEMSELVES = {"hypercorn", "hypercorn-trio"}
"""Servers that ask for a body before any app does."""


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def head(path: str, size: int, *headers: str) -> bytes:
    lines = (f"POST {path} HTTP/1.1", "Host: x", f"X-Cost: {size}", *headers, "", "")
    return "\r\n".join(lines).encode()


def read_until(connection: socket.socket, mark: bytes) -> bytes:
    """What comes up to ``mark``, or to the end."""
    came = b""
    while mark not in came and (piece := connection.recv(65536)):
        came += piece
    return came


# Expect: 100-continue


@pytest.mark.parametrize("estimator", [cost, StreamedCost()], ids=["body read", "body streamed"])
def test_a_client_that_waits_to_be_asked_for_its_body_is_asked_once_it_may_start(
    server: str, estimator: Any
) -> None:
    with Site(server, estimator=estimator) as site, site.server.connect() as connection:
        connection.sendall(
            head("/quick", 50, "Content-Length: 5", "Expect: 100-continue", "Connection: close")
        )
        assert b" 100 " in read_until(connection, b"\r\n\r\n")
        connection.sendall(b"hello")
        answer = read_until(connection, b"ok")
        assert b" 200 " in answer
        assert site.app.bodies["/quick"] == b"hello"


@pytest.mark.parametrize("reason", ["queue_full", "draining", "body_too_large"])
def test_a_client_that_is_refused_is_not_asked_for_its_body(server: str, reason: str) -> None:
    with Site(server, max_waiting=1, max_body_bytes=1000) as site:
        held = [site.send("/hold", 100)]
        site.until_in_use(100)
        held.append(site.send("/hold", 100))
        site.until_waiting(1)
        if reason == "draining":
            site.admission.drain()
        length = 2000 if reason == "body_too_large" else 5
        if reason == "body_too_large":
            site.app.gate.set()
            site.until_in_use(0)
        with site.server.connect() as connection:
            connection.sendall(
                head("/quick", 50, f"Content-Length: {length}", "Expect: 100-continue", "Connection: close")
            )
            answer = read_until(connection, b"}")
        if server not in ASK_BY_THEMSELVES:
            assert b" 100 " not in answer
        assert b"x-gpu-admission-reason: " + reason.encode() in answer.lower()
        for each in held:
            each.close()


# slow senders


@pytest.mark.parametrize("estimator", [cost, StreamedCost()], ids=["body read", "body streamed"])
def test_an_upload_that_stops_is_refused_and_its_place_is_free(server: str, estimator: Any) -> None:
    with Site(server, estimator=estimator, body_timeout=0.3) as site, site.server.connect() as connection:
        connection.sendall(head("/quick", 100, "Content-Length: 100") + b"half")
        answer = read_until(connection, b"}")
        assert b" 408 " in answer
        assert b"body_timeout" in answer
        site.until_in_use(0)
        with site.send("/quick", 100, b"whole") as other:
            assert b" 200 " in read_until(other, b"ok")


# slow readers


class Endless:
    """Sends until it is stopped."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for _ in range(2_000):
                await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            self.ended.set()


@pytest.mark.parametrize("server", sorted(SERVERS.keys() - SHIELDED))
def test_a_client_that_reads_nothing_gives_its_bytes_back(server: str) -> None:
    app = Endless()
    admission = Admission(capacity=100, estimator=60, send_timeout=0.3)
    with serving(server, GPUAdmission(app, admission=admission)) as running:
        with running.connect() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(head("/endless", 1, "Content-Length: 0"))
            assert connection.recv(10)
            assert app.ended.wait(20)
            turn = threading.Event()
            for _ in range(500):
                if not admission.in_use:
                    break
                turn.wait(0.02)
            assert admission.in_use == 0
        assert admission.snapshot().counts["admitted"] == 1
