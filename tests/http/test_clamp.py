"""Fewer new tokens for a hot device: the body, its length, the charge, and what the client is told."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from gpu_admission import Admission, GPUAdmission, RequestInfo
from gpu_admission.guards import ThermalGuard
from tests.cards import Card, HandClock, look

CHAT = b'{ "messages":[{"role":"user","content":"hi"}],\r\n\t"max_tokens" :  200 ,"n":1, "x":1.50 }'
HOT = 86.0


def new_tokens(info: RequestInfo) -> int:
    return info.workload.new_tokens


async def echo(request: Request) -> Response:
    """What the app gets: the body as it is, and the headers that tell of it."""
    body = await request.body()
    lease = request.scope.get("gpu_admission.lease")
    told = {
        "charged": lease.bytes if lease else None,
        "length": request.headers.get("content-length"),
        "headers": [name.decode() for name, _ in request.scope["headers"]],
        "body": body.decode("latin-1"),
    }
    return JSONResponse(told)


class Served:
    """An app behind an admission whose card has a temperature."""

    def __init__(self, clock: HandClock, temperature: float = HOT, **settings: Any) -> None:
        self.card = Card(clock, 10_000, facts={"temperature": temperature})
        options = {"estimator": new_tokens, "clamp_new_tokens": True, "guards": [ThermalGuard()], **settings}
        self.admission = Admission(capacity=10_000, devices=[self.card], timeout=0, **options)
        routes = [Route("/{path:path}", echo, methods=["POST"])]
        self.client = TestClient(GPUAdmission(Starlette(routes=routes), admission=self.admission))
        look(self.admission)

    def post(
        self, body: Any = CHAT, path: str = "/v1/chat/completions", headers: dict[str, str] | None = None
    ) -> tuple[dict[str, Any], str | None]:
        """What the app got, and the limit that the client was told."""
        answer = self.client.post(path, content=body, headers=headers)
        assert answer.status_code == 200, answer.text
        return answer.json(), answer.headers.get("x-gpu-admission-max-tokens")


def test_a_hot_device_halves_the_limit_and_nothing_else_of_the_body(by_hand: HandClock) -> None:
    got, told = Served(by_hand).post()
    shorter = CHAT.replace(b"200", b"100")
    assert got["body"] == shorter.decode()
    assert (told, got["length"], got["charged"]) == ("100", str(len(shorter)), 100)


def test_a_length_that_changes_is_told_in_the_same_place_among_the_headers(by_hand: HandClock) -> None:
    served = Served(by_hand)
    body = CHAT.replace(b"200", b"19")
    got, told = served.post(body, headers={"x-last": "1"})
    assert (told, got["length"]) == ("9", str(len(body) - 1))
    served.card.facts["temperature"] = 20.0
    by_hand.pass_(100)
    look(served.admission)
    as_it_came, _ = served.post(body, headers={"x-last": "1"})
    assert got["headers"] == as_it_came["headers"]


def test_where_no_limit_is_named_the_assumed_one_is_halved_and_named(by_hand: HandClock) -> None:
    body = b'{"messages":[{"role":"user","content":"hi"}]}'
    got, told = Served(by_hand).post(body)
    assert json.loads(got["body"]) == {**json.loads(body), "max_tokens": int(told or "")}
    assert got["body"].endswith('"messages":[{"role":"user","content":"hi"}]}')
    assert got["charged"] == int(told or "")
    assert got["length"] == str(len(got["body"]))


def test_a_body_without_a_declared_length_gets_none(by_hand: HandClock) -> None:
    got, told = Served(by_hand).post(iter([CHAT[:10], CHAT[10:]]))
    assert (told, got["length"]) == ("100", None)
    assert "transfer-encoding" in got["headers"]
    assert got["body"] == CHAT.replace(b"200", b"100").decode()


def test_a_large_body_is_clamped_too(by_hand: HandClock) -> None:
    body = CHAT.replace(b"hi", b"x" * 2**19)
    got, told = Served(by_hand).post(body)
    assert (told, got["body"]) == ("100", body.replace(b"200", b"100").decode())


def test_no_limit_falls_below_one(by_hand: HandClock) -> None:
    got, told = Served(by_hand).post(CHAT.replace(b"200", b"1"))
    assert (told, got["charged"]) == (None, 1)


@pytest.mark.parametrize(
    ("body", "path", "headers"),
    [
        (gzip.compress(CHAT), "/v1/chat/completions", {"content-encoding": "gzip"}),
        (b'{"input": "hi", "model": "m"}', "/v1/embeddings", None),
        (b"\xff\xfe not json", "/v1/chat/completions", None),
        (b"", "/v1/chat/completions", None),
        (
            b"--x\r\n\r\n--x--",
            "/v1/audio/transcriptions",
            {"content-type": "multipart/form-data; boundary=x"},
        ),
    ],
)
def test_what_can_not_be_clamped_reaches_the_app_as_it_came(
    by_hand: HandClock, body: bytes, path: str, headers: dict[str, str] | None
) -> None:
    got, told = Served(by_hand, fallback=10, estimator=lambda info: 1 + new_tokens(info)).post(
        body, path, headers
    )
    assert (got["body"], told) == (body.decode("latin-1"), None)
    assert got["length"] == str(len(body))


@pytest.mark.parametrize(
    ("temperature", "settings"),
    [
        (HOT, {"clamp_new_tokens": False}),
        (HOT, {"mode": "shadow"}),
        (81.0, {}),
        (20.0, {}),
    ],
)
def test_only_those_who_opted_in_are_clamped_and_only_when_it_is_hot(
    by_hand: HandClock, temperature: float, settings: dict[str, Any]
) -> None:
    got, told = Served(by_hand, temperature, **settings).post()
    assert (got["body"], told, got["charged"]) == (CHAT.decode(), None, 200)


def test_an_estimator_that_needs_no_body_has_none_read_for_it(by_hand: HandClock) -> None:
    got, told = Served(by_hand, estimator=10).post()
    assert (got["body"], told) == (CHAT.decode(), None)


class Bare:
    """A dialect of the user's, without a way to clamp."""

    def read(self, info: RequestInfo) -> Any:
        from gpu_admission import Workload

        return Workload(new_tokens=len(info.body))


class Broken(Bare):
    def clamp(self, body: bytes, new_tokens: int) -> bytes:
        raise ZeroDivisionError


class Deaf(Bare):
    def clamp(self, body: bytes, new_tokens: int) -> bytes:
        return body


@pytest.mark.parametrize(
    ("dialect", "logged"), [(Bare(), ""), (Broken(), "clamping failed on Broken"), (Deaf(), "")]
)
def test_a_dialect_that_can_not_clamp_loses_no_request(
    by_hand: HandClock, dialect: Any, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    got, told = Served(by_hand, dialect=dialect).post()
    assert (got["body"], told, got["charged"]) == (CHAT.decode(), None, len(CHAT))
    assert logged in caplog.text
    assert bool(caplog.records) == bool(logged)


def test_one_hot_device_of_two_clamps_whatever_is_placed_on_either(by_hand: HandClock) -> None:
    cool = Card(by_hand, 1000, name="cool", facts={"temperature": 30.0})
    served = Served(by_hand)
    admission = Admission(
        capacity=1000,
        devices=[cool, served.card],
        guards=[ThermalGuard()],
        estimator=new_tokens,
        clamp_new_tokens=True,
    )
    look(admission)
    assert admission.monitor.clamp == 0.5
    cool.facts["temperature"] = served.card.facts["temperature"] = 30.0
    by_hand.pass_(100)
    look(admission)
    assert admission.monitor.clamp is None


def test_on_a_route_of_its_own_the_body_is_the_frameworks_and_stays(by_hand: HandClock) -> None:
    """It may have been read already: then a smaller charge would be a wrong one."""
    card = Card(by_hand, 1000, facts={"temperature": HOT})
    admission = Admission(
        capacity=1000, devices=[card], guards=[ThermalGuard()], estimator=new_tokens, clamp_new_tokens=True
    )
    look(admission)
    charged: list[int] = []

    @admission.admit
    async def chat(request: Request) -> Response:
        held = admission.entrance.held()
        assert held is not None
        charged.append(held.bytes)
        return await echo(request)

    routes = [Route("/v1/chat/completions", chat, methods=["POST"])]
    with TestClient(Starlette(routes=routes)) as client:
        answer = client.post("/v1/chat/completions", content=CHAT)
    assert (answer.json()["body"], charged) == (CHAT.decode(), [200])
    assert "x-gpu-admission-max-tokens" not in answer.headers
