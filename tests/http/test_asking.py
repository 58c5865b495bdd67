"""What a request is charged: estimators asked here and in threads, async ones, and those that fail."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from gpu_admission import Admission, Estimate, RequestInfo, TooLarge, UnreadableBody, Workload
from gpu_admission.bodies.large import LARGE_BYTES
from gpu_admission.http.intake import intake_of
from gpu_admission.rules.metering import Metering, Rule
from gpu_admission.types import Message
from tests.cases.harness import http_scope

pytestmark = pytest.mark.anyio
CAPACITY = 77


class Dialect:
    """Counts how often it is asked, and where."""

    def __init__(self) -> None:
        self.threads: list[int] = []

    def read(self, info: RequestInfo) -> Workload:
        self.threads.append(threading.get_ident())
        return Workload(prompt_tokens=len(info.body))


async def estimate(rule: Rule, size: int = 1) -> Estimate:
    """What a request with a body of ``size`` bytes is charged."""
    admission = Admission(capacity=CAPACITY, estimator=1)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"x" * size}

    scope = http_scope()
    return await intake_of(admission, rule, scope, receive).estimate()


def rule(estimator: Any, dialect: Any = None) -> Rule:
    return Rule("/work", "*", estimator, dialect)


async def test_a_route_that_no_pattern_of_the_mapping_names_is_charged_as_a_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metering = Metering({"/v1/chat": 10}, routes=["/v1/**"])
    found = metering.rule(http_scope(path="/v1/other"))
    assert found is not None
    assert not found.needs_body
    with caplog.at_level(logging.ERROR):
        charged = await estimate(found)
    assert charged.bytes == CAPACITY
    assert "no pattern of the estimator mapping matches /v1/**" in caplog.text


async def test_an_estimator_may_be_async_or_return_an_awaitable() -> None:
    async def later(info: RequestInfo) -> int:
        return len(info.body)

    class Object:
        async def __call__(self, info: RequestInfo) -> Estimate:
            return Estimate(len(info.body))

    for size in (7, LARGE_BYTES + 1):
        for estimator in (later, Object(), lambda info: later(info)):
            assert (await estimate(rule(estimator), size)).bytes == size


async def test_a_large_body_is_read_in_a_thread_and_a_small_one_here() -> None:
    here, threads = threading.get_ident(), []

    def plain(info: RequestInfo) -> int:
        threads.append(threading.get_ident())
        return len(info.body)

    for size in (LARGE_BYTES, LARGE_BYTES + 1):
        assert (await estimate(rule(plain), size)).bytes == size
    assert [thread == here for thread in threads] == [True, False]


async def test_the_workload_of_a_large_body_is_read_ahead_for_an_async_estimator() -> None:
    dialect = Dialect()

    async def later(info: RequestInfo) -> int:
        return info.workload.prompt_tokens

    charged = await estimate(rule(later, dialect), LARGE_BYTES + 1)
    assert charged.bytes == LARGE_BYTES + 1
    assert len(dialect.threads) == 1
    assert dialect.threads[0] != threading.get_ident()


async def test_a_dialect_that_fails_ahead_is_no_failure_of_an_estimator_that_does_without() -> None:
    class Failing:
        def read(self, info: RequestInfo) -> Workload:
            raise ZeroDivisionError

    async def later(info: RequestInfo) -> int:
        return 5

    assert (await estimate(rule(later, Failing()), LARGE_BYTES + 1)).bytes == 5


async def test_a_failed_estimator_is_logged_by_its_class_and_charged_otherwise(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails(info: RequestInfo) -> int:
        raise ZeroDivisionError("a prompt\nWARNING forged: line")

    with caplog.at_level(logging.DEBUG, "gpu_admission"):
        charged = await estimate(rule(fails))
    assert charged == Estimate(CAPACITY, notes=("the estimator failed with ZeroDivisionError",))
    shown, details = (record for record in caplog.records if "failed" in record.message)
    assert shown.levelno == logging.ERROR
    said = "the estimator of * failed with ZeroDivisionError: 77 B charged instead ("
    assert shown.message.startswith(said)
    assert details.levelno == logging.DEBUG
    assert "a prompt" in details.message
    assert "\n" not in details.message


@pytest.mark.parametrize("refusal", [UnreadableBody("odd"), TooLarge("too_large", "much")], ids=repr)
async def test_a_refusal_that_an_estimator_raises_is_one(refusal: Exception) -> None:
    def refuses(info: RequestInfo) -> int:
        raise refusal

    for size in (1, LARGE_BYTES + 1):
        with pytest.raises(type(refusal)) as caught:
            await estimate(rule(refuses), size)
        assert caught.value is refusal


async def test_what_an_estimate_says_besides_its_bytes_is_kept() -> None:
    said = Estimate(5.5, low=3, basis="pool", parts={"kv": 5}, notes=("a note",))  # type: ignore[arg-type]
    charged = await estimate(rule(lambda info: said))
    assert charged == Estimate(6, low=3, basis="pool", parts={"kv": 5}, notes=("a note",))
