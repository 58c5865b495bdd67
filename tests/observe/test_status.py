"""Who may see the status page, and what is sent to whom."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.routing import Mount
from starlette.testclient import TestClient

from gpu_admission import Admission
from gpu_admission.observe import Logs, local_only, status_app
from gpu_admission.observe.board import Board
from gpu_admission.observe.status import StatusApp, preferred
from gpu_admission.types import Message

TOKEN = "a-token-of-enough-characters"
HTML = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.fixture
def admission() -> Admission:
    return Admission(capacity="20GiB", estimator="1GiB")


def client(
    admission: Admission, address: str = "127.0.0.1", host: str = "localhost", **who: Any
) -> TestClient:
    app = Starlette(routes=[Mount("/gpu", status_app(admission, **who))])
    return TestClient(app, base_url=f"http://{host}", client=(address, 50000))


# who may look


@pytest.mark.parametrize("who", [{}, {"token": TOKEN, "allow": local_only}])
def test_who_may_look_has_to_be_said(admission: Admission, who: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="say who may see the status page"):
        status_app(admission, **who)


def test_a_token_that_can_be_guessed_is_refused(admission: Admission) -> None:
    with pytest.raises(ValueError, match="at least 16 characters"):
        status_app(admission, token="secret")


def basic(password: str) -> str:
    return "Basic " + base64.b64encode(f"anybody:{password}".encode()).decode()


@pytest.mark.parametrize("sent", [f"Bearer {TOKEN}", f"bearer {TOKEN}", basic(TOKEN)])
def test_the_token_opens_the_page(admission: Admission, sent: str) -> None:
    answer = client(admission, "8.8.8.8", token=TOKEN).get("/gpu/", headers=HTML | {"authorization": sent})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "sent",
    [
        "",
        "Bearer",
        "Bearer wrong",
        f"Token {TOKEN}",
        basic("wrong"),
        "Basic ÿ",
        "Basic %%%",
        f"Bearer {TOKEN}x",
    ],
)
def test_without_the_token_nothing_is_told(admission: Admission, sent: str) -> None:
    headers = [(b"authorization", sent.encode("latin-1"))]
    answer = client(admission, token=TOKEN).get("/gpu/", headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Basic realm=")
    assert "capacity" not in answer.text


def test_a_token_in_the_address_does_not_count(admission: Admission) -> None:
    assert client(admission, token=TOKEN).get(f"/gpu/?token={TOKEN}").status_code == 401


async def _allowed(connection: HTTPConnection) -> bool:
    return connection.headers.get("x-team") == "operators"


def test_a_callable_decides_also_an_async_one(admission: Admission) -> None:
    browser = client(admission, allow=_allowed)
    assert browser.get("/gpu/").status_code == 403
    assert browser.get("/gpu/", headers={"x-team": "operators"}).status_code == 200


def test_only_true_lets_in(admission: Admission) -> None:
    """A callable that forgets to answer, or answers with an object, opens nothing."""
    assert client(admission, allow=lambda connection: None).get("/gpu/").status_code == 403
    assert client(admission, allow=lambda connection: "yes").get("/gpu/").status_code == 403


@pytest.mark.parametrize(
    ("address", "host", "headers", "status"),
    [
        ("127.0.0.1", "localhost:8000", {}, 200),
        ("127.0.0.1", "127.0.0.1", {}, 200),
        ("::1", "[::1]:8000", {}, 200),
        ("10.0.0.5", "localhost", {}, 403),
        ("testclient", "localhost", {}, 403),
        ("127.0.0.1", "evil.example", {}, 403),
        ("127.0.0.1", "localhost", {"x-forwarded-for": "8.8.8.8"}, 403),
        ("127.0.0.1", "localhost", {"forwarded": "for=8.8.8.8"}, 403),
    ],
)
def test_local_only_lets_in_who_sits_here(
    admission: Admission, address: str, host: str, headers: dict[str, str], status: int
) -> None:
    answer = client(admission, address, host, allow=local_only).get("/gpu/", headers=headers)
    assert answer.status_code == status


def test_a_client_without_an_address_is_not_local() -> None:
    scope = {"type": "http", "headers": [], "path": "/", "query_string": b"", "server": ("localhost", 80)}
    assert not local_only(HTTPConnection(scope | {"client": None, "scheme": "http"}))


# what is sent


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("", "application/json"),
        ("*/*", "application/json"),
        ("application/json", "application/json"),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", "text/html"),
        ("text/html;q=0.2, application/json", "application/json"),
        ("application/json;q=0.2, text/html;q=0.9", "text/html"),
        ("text/html;q=0", "application/json"),
        ("text/html;q=x", "application/json"),
        ("text/event-stream", "text/event-stream"),
        ("text/html;charset=utf-8", "text/html"),
    ],
)
def test_accept_chooses_what_is_sent(accept: str, kind: str) -> None:
    assert preferred(accept) == kind


def test_json_is_sent_to_whoever_asks_for_nothing_else(admission: Admission) -> None:
    answer = client(admission, allow=local_only).get("/gpu/")
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.json()["capacity"] == 20 * 2**30


def test_the_page_is_whole_and_may_do_nothing_but_ask_here(admission: Admission) -> None:
    answer = client(admission, allow=local_only).get("/gpu/", headers=HTML)
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert "connect-src 'self'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "/*style*/" not in answer.text
    assert "/*script*/" not in answer.text
    for loads in ("src=", "@import", "url(", "http://", "innerHTML", "insertAdjacentHTML"):
        assert loads not in answer.text.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_the_page_is_read_only(admission: Admission, method: str) -> None:
    answer = client(admission, allow=local_only).request(method, "/gpu/")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, HEAD"


def test_head_has_no_body(admission: Admission) -> None:
    browser = client(admission, allow=local_only)
    for accept in ("text/html", "text/event-stream", "application/json"):
        answer = browser.head("/gpu/", headers={"accept": accept})
        assert answer.status_code == 200
        assert answer.content == b""


def test_a_stream_sends_the_state_again_and_again_and_then_ends(
    admission: Admission, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An endless stream would hold up the shutdown of the server."""
    monkeypatch.setattr("gpu_admission.observe.status._STREAM_SECONDS", 0.03)
    monkeypatch.setattr("gpu_admission.observe.status._EVERY", 0.01)
    answer = client(admission, allow=local_only).get("/gpu/", headers={"accept": "text/event-stream"})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-accel-buffering"] == "no"
    first, *messages = answer.text.strip().split("\n\n")
    assert first == "retry: 250"
    assert [json.loads(message.removeprefix("data: "))["mode"] for message in messages] == ["enforce"] * 3


def test_while_draining_a_stream_ends_at_once(admission: Admission) -> None:
    admission.drain()
    answer = client(admission, allow=local_only).get("/gpu/", headers={"accept": "text/event-stream"})
    assert answer.text.count("data: ") == 1


def test_more_streams_than_a_few_are_sent_away(admission: Admission, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_admission.observe.status._MOST_STREAMS", 0)
    answer = client(admission, allow=local_only).get("/gpu/", headers={"accept": "text/event-stream"})
    assert answer.status_code == 503


@pytest.mark.anyio
async def test_what_is_no_request_gets_no_page(admission: Admission) -> None:
    app = status_app(admission, allow=local_only)
    sent: list[Message] = []

    async def receive() -> Message:
        raise AssertionError("nothing is read")

    async def send(message: Message) -> None:
        sent.append(message)

    await app({"type": "websocket"}, receive, send)
    await app({"type": "lifespan"}, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1000}]


def test_a_page_that_is_mounted_twice_remembers_once(admission: Admission) -> None:
    admission.observe(Logs())
    one = status_app(admission, allow=local_only)
    two = status_app(admission, token=TOKEN)
    assert isinstance(one, StatusApp)
    assert isinstance(two, StatusApp)
    assert [type(observer) for observer in admission.observers] == [Logs, Board]
