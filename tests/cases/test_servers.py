"""What only a real server shows: BL-23, BL-90, and others of these cases over real connections."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import anyio.to_thread
import httpx
import pytest

from gpu_admission import Admission, GPUAdmission
from gpu_admission.types import Receive, Scope, Send
from tests.cases.harness import StreamedCost, answer, cost
from tests.cases.servers import SERVERS, run_uvicorn, serving
from tests.waiting import until, wait_for

MEGABYTE = 10**6


class Gated:
    """Reads its body and works until the test lets it go; ``/after`` works on after its answer."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.started: list[str] = []
        self.bodies: dict[str, bytes] = {}
        self.disconnected = threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        self.started.append(path)
        if path == "/after":
            await self._read(path, receive)
            await answer(send, b"ok")
            await self._work()
            return
        if path == "/watch":
            await self._read(path, receive)
            assert (await receive())["type"] == "http.disconnect"
            self.disconnected.set()
            return
        if path == "/quick":
            await self._read(path, receive)
        else:
            await self._work()
            await self._read(path, receive)
        await answer(send, b"ok")

    async def _work(self) -> None:
        assert await anyio.to_thread.run_sync(self.gate.wait, 20)

    async def _read(self, path: str, receive: Receive) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        self.bodies[path] = body


class Site:
    """A gated app behind an admission of 100 bytes on a real server."""

    def __init__(self, name: str, **settings: Any) -> None:
        self.app = Gated()
        options: dict[str, Any] = {"capacity": 100, "estimator": cost, "timeout": 20, **settings}
        self.admission = Admission(**options)
        self._serving = serving(name, GPUAdmission(self.app, admission=self.admission))

    def __enter__(self) -> Site:
        self.server = self._serving.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self.app.gate.set()
        self._serving.__exit__(*exc)

    def send(self, path: str, size: int, body: bytes = b"", length: int | None = None) -> socket.socket:
        """A request on a connection of its own."""
        connection = self.server.connect()
        connection.sendall(request(path, size, body, length))
        return connection

    def until_waiting(self, count: int) -> None:
        until(lambda: self.admission.snapshot().waiting == count)

    def until_in_use(self, size: int) -> None:
        until(lambda: self.admission.snapshot().in_use == size)


def request(path: str, size: int, body: bytes = b"", length: int | None = None) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nX-Cost: {size}\r\nContent-Length: {length or len(body)}\r\n\r\n"
    )
    return head.encode() + body


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


# BL-23: an early answer, and an upload that nobody reads


class Client:
    """Posts to one server on kept connections, and again where one was closed before it was used again.

    Hypercorn closes the connection of a request whose body has not come when it is answered, and does not
    say so in the answer: the next request may be on its way by then. On a new connection nothing is forgiven.
    """

    def __init__(self, port: int) -> None:
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: Any) -> None:
        self._client.close()

    def post(self, path: str, size: int, content: bytes) -> httpx.Response:
        steps: list[str] = []
        watched = {"trace": lambda step, info: steps.append(step)}
        try:
            return self._post(path, size, content, watched)
        except httpx.RemoteProtocolError:
            if "connection.connect_tcp.started" in steps:
                raise
        return self._post(path, size, content, {})

    def _post(self, path: str, size: int, content: bytes, extensions: dict[str, Any]) -> httpx.Response:
        headers = {"x-cost": str(size)}
        return self._client.post(path, headers=headers, content=content, extensions=extensions)


@pytest.mark.parametrize("reason", ["body_too_large", "queue_full", "draining", "too_large"])
def test_bl_23_the_refusal_of_a_large_upload_arrives_whole_and_the_client_can_go_on(
    server: str, reason: str
) -> None:
    settings: dict[str, Any] = {"max_body_bytes": MEGABYTE if reason == "body_too_large" else "64MiB"}
    with Site(server, max_waiting=1, **settings) as site:
        held = [site.send("/hold", 100)]
        site.until_in_use(100)
        if reason == "queue_full":
            held.append(site.send("/hold", 100))
            site.until_waiting(1)
        if reason == "draining":
            site.admission.drain()
        size = 101 if reason == "too_large" else 50
        with Client(site.server.port) as client:
            for _ in range(3):
                refused = client.post("/work", size, b"x" * 20 * MEGABYTE)
                assert refused.json()["reason"] == reason
                again = client.post("/work", 101, b"x")
                assert again.json()["reason"] == (
                    reason if reason in ("queue_full", "draining") else "too_large"
                )
            site.app.gate.set()
            if reason != "draining":
                site.until_in_use(0)
                assert client.post("/quick", 1, b"x").text == "ok"
        for connection in held:
            connection.close()


def test_bl_23_an_upload_cut_into_chunks_that_is_too_large_is_refused_too(server: str) -> None:
    def upload() -> Iterator[bytes]:
        for _ in range(200):
            yield b"x" * 100_000

    with (
        Site(server, max_body_bytes=MEGABYTE) as site,
        httpx.Client(base_url=f"http://127.0.0.1:{site.server.port}", timeout=20) as client,
    ):
        refused = client.post("/quick", headers={"x-cost": "1"}, content=upload())
        assert refused.json()["reason"] == "body_too_large"
        assert client.post("/quick", headers={"x-cost": "1"}, content=b"x").text == "ok"


# the client's side of BL-03, BL-06 and BL-07


@pytest.mark.parametrize("estimator", [cost, StreamedCost()], ids=["body read", "body streamed"])
def test_bl_07_a_client_that_hangs_up_in_the_queue_is_forgotten(server: str, estimator: Any) -> None:
    with Site(server, estimator=estimator) as site:
        holder = site.send("/hold", 100, b"question")
        site.until_in_use(100)
        leaver = site.send("/work", 100, b"question")
        site.until_waiting(1)
        leaver.close()
        site.until_waiting(0)
        assert site.admission.snapshot().counts["disconnected"] == 1
        site.app.gate.set()
        site.until_in_use(0)
        assert site.app.started == ["/hold"]
        holder.close()


def test_bl_03_an_app_behind_learns_that_its_client_has_left(server: str) -> None:
    with Site(server) as site:
        client = site.send("/watch", 100, b"question")
        site.until_in_use(100)
        client.close()
        assert site.app.disconnected.wait(10)
        site.until_in_use(0)


def test_bl_06_an_upload_that_goes_on_while_its_request_waits_arrives_whole(server: str) -> None:
    """Each chunk may come at any moment, also at the very one of the grant."""
    with Site(server, estimator=StreamedCost()) as site:
        for number in range(20):
            site.app.gate.clear()
            holder = site.send("/hold", 100)
            site.until_in_use(100)
            path = f"/{number}"
            sent = [b"%d:%d;" % (number, piece) * 50 for piece in range(20)]
            call = site.send(path, 100, sent[0], length=sum(map(len, sent)))
            site.until_waiting(1)
            uploading = threading.Thread(target=_upload, args=(call, sent[1:]))
            uploading.start()
            site.app.gate.set()
            uploading.join()
            assert b"200" in call.recv(4096)
            assert site.app.bodies[path] == b"".join(sent)
            site.until_in_use(0)
            for connection in (holder, call):
                connection.close()


def _upload(connection: socket.socket, pieces: list[bytes]) -> None:
    for piece in pieces:
        connection.sendall(piece)


# BL-49: requests that a server starts in the context of others


@pytest.mark.parametrize("size", [2, MEGABYTE], ids=["small", "read in several pieces"])
@pytest.mark.parametrize("pipelined", [True, False])
@pytest.mark.parametrize("estimator", [cost, StreamedCost()], ids=["body read", "body streamed"])
def test_bl_49_the_next_request_of_a_connection_waits_like_any_other(
    server: str, size: int, pipelined: bool, estimator: Any
) -> None:
    with Site(server, estimator=estimator) as site:
        first, second = request("/after", 60, b"x" * size), request("/quick", 60, b"y")
        with site.server.connect() as connection:
            connection.sendall(first + second if pipelined else first)
            answered = b""
            while b"ok" not in answered:
                answered += connection.recv(4096)
            if not pipelined:
                connection.sendall(second)
            if not server.startswith("uvicorn"):
                # These begin with the next one when the app has returned.
                assert site.admission.snapshot().in_use == 60
            else:
                site.until_waiting(1)
            assert site.app.started == ["/after"]
            site.app.gate.set()
            until(lambda: "/quick" in site.app.started)
        site.until_in_use(0)


# BL-90: shutting down


@pytest.mark.parametrize("grace", [None, 5])
@pytest.mark.parametrize("drains", [True, False])
def test_bl_90_shutting_down_ends_the_queue_and_lets_work_end(grace: int | None, drains: bool) -> None:
    app = Gated()
    admission = Admission(capacity=100, estimator=cost, timeout=20 if drains else 0.3)
    server = run_uvicorn(GPUAdmission(app, admission=admission), timeout_graceful_shutdown=grace)
    wait_for(server.port)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=20) as client:
            answers: list[int] = []

            def call() -> None:
                response = client.post("/hold", headers={"x-cost": "100"}, content=b"x")
                answers.append(response.status_code)

            clients = [threading.Thread(target=call) for _ in range(6)]
            for thread in clients:
                thread.start()
            turn = threading.Event()
            while (admission.snapshot().running, admission.snapshot().waiting) != (1, 5):
                turn.wait(0.01)
            server.stop()
            if drains:
                admission.drain()
            while len(answers) < 5:
                turn.wait(0.01)
            assert answers == [503 if drains else 429] * 5
            app.gate.set()
            for thread in clients:
                thread.join(10)
            assert answers[5:] == [200]
    finally:
        app.gate.set()
        server.stop()
        server.join()
    rest = admission.snapshot()
    assert (rest.in_use, rest.waiting) == (0, 0)


def test_a_draining_admission_admits_nobody_and_says_so() -> None:
    with Site("uvicorn-h11") as site:
        holder = site.send("/hold", 60)
        site.until_in_use(60)
        site.admission.drain()
        answered = httpx.post(f"http://127.0.0.1:{site.server.port}/work", headers={"x-cost": "1"})
        assert (answered.status_code, answered.json()["reason"]) == (503, "draining")
        site.app.gate.set()
        assert b"200" in holder.recv(4096)
        holder.close()
