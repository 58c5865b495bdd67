"""Log lines of requests: their words, their extras, their request id."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from gpu_admission import Admission, GPUAdmission
from gpu_admission.observe import Logs, RequestIdFilter, current_request_id
from tests.observe.events import event

NAME = "gpu_admission.requests"


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, NAME)
    return caplog


def observed(**settings: Any) -> Admission:
    return Admission(**({"capacity": "20GiB", "estimator": "1GiB", "observers": [Logs()]} | settings))


def client(admission: Admission) -> TestClient:
    async def work(request: Request) -> PlainTextResponse:
        logging.getLogger("app").warning("working")
        return PlainTextResponse(current_request_id())

    app = Starlette(routes=[Route("/work", work, methods=["POST"])])
    app.add_middleware(GPUAdmission, admission=admission)
    return TestClient(app)


def records(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [record for record in caplog.records if record.name == NAME]


def test_each_line_carries_the_id_that_the_client_sent(logged: pytest.LogCaptureFixture) -> None:
    assert client(observed()).post("/work", headers={"x-request-id": "abc-123"}).text == "abc-123"
    began, ended = records(logged)
    assert (began.event, ended.event) == ("admitted", "released")
    assert began.request_id == ended.request_id == "abc-123"
    assert "request_id=abc-123" in began.getMessage()
    assert began.lease == ended.lease
    assert (ended.route, ended.lane, ended.bytes, ended.outcome) == ("*", "default", 2**30, "ok")


@pytest.mark.parametrize("sent", ["", "x" * 129, "two words", "new\tline", "ü"])
def test_an_id_that_could_forge_a_line_is_replaced(logged: pytest.LogCaptureFixture, sent: str) -> None:
    headers = {"x-request-id": sent.encode("latin-1")}
    made = client(observed()).post("/work", headers=list(headers.items())).text  # type: ignore[arg-type]
    assert re.fullmatch("[0-9a-f]{32}", made)
    assert {record.request_id for record in records(logged)} == {made}


def test_each_request_gets_an_id_of_its_own(logged: pytest.LogCaptureFixture) -> None:
    browser = client(observed())
    assert browser.post("/work").text != browser.post("/work").text


def test_without_logs_no_id_is_made() -> None:
    assert client(observed(observers=[])).post("/work").text == ""


def test_a_refusal_is_one_line_at_info_with_its_reason(logged: pytest.LogCaptureFixture) -> None:
    client(observed(estimator="21GiB")).post("/work", headers={"x-request-id": "abc"})
    (line,) = records(logged)
    assert line.levelno == logging.INFO
    assert (line.event, line.reason, line.status, line.request_id) == ("refused", "too_large", 413, "abc")
    assert line.getMessage().startswith("refused 21.00 GiB: too_large (413) route=* lane=default")


@pytest.mark.parametrize(
    ("fields", "level", "words"),
    [
        ({"kind": "admitted", "waited": 1.5}, logging.DEBUG, "lease 1 of 100 B began after 1.500 s"),
        ({"kind": "resized", "bytes": 50}, logging.DEBUG, "lease 1 holds 50 B now"),
        ({"kind": "released", "held": 2.0}, logging.DEBUG, "lease 1 of 100 B ended after 2.000 s: ok"),
        (
            {"kind": "released", "outcome": "oom"},
            logging.WARNING,
            "lease 1 of 100 B ended after 0.000 s: oom",
        ),
        ({"kind": "disconnected"}, logging.INFO, "the client left before it was its turn"),
        ({"kind": "shadow", "reason": ""}, logging.DEBUG, "lease 1 of 100 B began"),
        (
            {"kind": "shadow", "reason": "queue_full"},
            logging.INFO,
            "would not have started: queue_full",
        ),
    ],
)
def test_what_matters_is_louder(
    logged: pytest.LogCaptureFixture, fields: dict[str, Any], level: int, words: str
) -> None:
    observed().observers[0](event(**fields))
    (line,) = records(logged)
    assert line.levelno == level
    assert line.getMessage().startswith(words)


def test_debug_lines_carry_the_memory(logged: pytest.LogCaptureFixture) -> None:
    client(observed()).post("/work")
    before, after = records(logged)
    assert (before.in_use, after.in_use) == (2**30, 0)
    assert before.devices[0]["name"] == "device"
    assert set(before.devices[0]) == {"name", "used", "allocated", "age"}


def test_the_start_is_no_request(logged: pytest.LogCaptureFixture) -> None:
    observed().startup.start()
    assert records(logged) == []


def test_a_silent_level_costs_no_words(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, NAME)
    client(observed()).post("/work")
    assert records(caplog) == []


def test_another_logger_may_be_named(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "mine")
    for logs in (Logs("mine"), Logs(logging.getLogger("mine"))):
        client(observed(observers=[logs])).post("/work")
    assert [record.name for record in caplog.records if record.name == "mine"] == ["mine"] * 4


def test_the_filter_puts_the_id_on_lines_of_the_app_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.handler.addFilter(RequestIdFilter())
    client(observed()).post("/work", headers={"x-request-id": "abc"})
    (line,) = (record for record in caplog.records if record.name == "app")
    assert line.__dict__["request_id"] == "abc"


def test_the_filter_leaves_an_id_that_is_there() -> None:
    record = logging.LogRecord("app", logging.INFO, "", 0, "", None, None)
    record.request_id = "mine"
    assert RequestIdFilter().filter(record)
    assert record.__dict__["request_id"] == "mine"
