"""Which requests are metered and what each is charged: rules, estimators and their failures."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from gpu_admission import Estimate, RequestInfo, TooLarge, UnreadableBody, Workload
from gpu_admission.bodies.large import LARGE_BYTES
from gpu_admission.rules.metering import Metering, Rule, estimate
from tests.cases.harness import http_scope

pytestmark = pytest.mark.anyio


class Dialect:
    """Counts how often it is asked, and where."""

    def __init__(self) -> None:
        self.threads: list[int] = []

    def read(self, info: RequestInfo) -> Workload:
        self.threads.append(threading.get_ident())
        return Workload(prompt_tokens=len(info.body))


def rule_of(metering: Metering, path: str = "/work", method: str = "POST") -> Rule | None:
    return metering.rule(http_scope(path=path, method=method))


def route_of(metering: Metering, path: str = "/work", method: str = "POST") -> str | None:
    rule = rule_of(metering, path, method)
    return None if rule is None else rule.route


@pytest.mark.parametrize(
    ("method", "metered"),
    [("POST", True), ("PUT", True), ("PATCH", True), ("GET", False), ("DELETE", False), ("OPTIONS", False)],
)
def test_methods_that_carry_work_are_metered(method: str, metered: bool) -> None:
    assert (rule_of(Metering(1), method=method) is not None) == metered


def test_other_methods_are_metered_where_named_but_options_never() -> None:
    metering = Metering(1, methods=["get", "OPTIONS"])
    assert [route_of(metering, method=method) for method in ("GET", "OPTIONS", "POST")] == ["*", None, None]


def test_routes_and_exclusions_choose_the_paths() -> None:
    metering = Metering(1, routes=["/v1/**"], exclude=["/v1/health"])
    assert [route_of(metering, path) for path in ("/v1/chat", "/v1/health", "/other")] == [
        "/v1/**",
        None,
        None,
    ]


def test_a_mapping_names_the_estimator_of_each_path_and_the_first_match_wins() -> None:
    metering = Metering({"/v1/chat": 10, "/v1/*": 20})
    rules = [rule_of(metering, path) for path in ("/v1/chat", "/v1/embed", "/other")]
    assert [rule and rule.route for rule in rules] == ["/v1/chat", "/v1/*", None]
    assert [name for name, _ in metering.named_estimators()] == [
        "estimator['/v1/chat']",
        "estimator['/v1/*']",
    ]
    assert len(metering.estimators()) == 2


async def test_a_route_that_no_pattern_of_the_mapping_names_is_charged_as_a_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metering = Metering({"/v1/chat": 10}, routes=["/v1/**"])
    rule = rule_of(metering, "/v1/other")
    assert rule is not None
    assert not rule.needs_body
    with caplog.at_level(logging.ERROR):
        charged = await estimate(rule, RequestInfo(http_scope()), lambda: 77)
    assert charged.bytes == 77
    assert "no pattern of the estimator mapping matches /v1/**" in caplog.text


def test_a_named_route_takes_its_own_estimator_or_else_the_admissions() -> None:
    metering = Metering(10, exclude=["/free"], dialect=Dialect())
    scope = http_scope(path="/free")
    assert metering.default(scope, "named", None).estimator is metering.estimators()[0]
    assert metering.default(http_scope(), "named", None).estimator is metering.estimators()[0]
    own = metering.default(scope, "named", lambda info: 5)
    assert (own.route, own.path, own.needs_body) == ("named", "/free", True)
    assert Metering({"/a": 1}).default(scope, "named", None).estimator is None


def test_a_dialect_is_given_for_all_paths_or_for_some() -> None:
    one, other = Dialect(), Dialect()
    everywhere = rule_of(Metering(1, dialect=one), "/a")
    assert everywhere is not None
    assert everywhere.dialect is one
    some = Metering(1, dialect={"/a": one, "/b": other})
    assert [getattr(rule_of(some, path), "dialect", None) for path in ("/a", "/b", "/c")] == [
        one,
        other,
        None,
    ]


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"estimator": {}}, ValueError, "empty dict"),
        ({"estimator": [1]}, TypeError, "estimator must be a size, a callable"),
        ({"estimator": {"/a": True}}, TypeError, r"estimator\['/a'\] must be"),
        ({"estimator": int}, TypeError, r"write int\(...\)"),
        ({"estimator": 0}, ValueError, "must be above 0"),
        ({"estimator": 1, "methods": "POST"}, TypeError, "methods must be a list"),
        ({"estimator": 1, "methods": 5}, TypeError, "methods must be a list"),
        ({"estimator": 1, "methods": [""]}, TypeError, "methods must hold names"),
    ],
)
def test_wrong_settings_are_refused(options: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        Metering(**options)


def rule(estimator: Any, dialect: Any = None) -> Rule:
    return Rule("/work", "*", estimator, dialect)


def info_of(size: int, dialect: Any = None) -> RequestInfo:
    return RequestInfo(http_scope(), b"x" * size, dialect=dialect)


async def test_an_estimator_may_be_async_or_return_an_awaitable() -> None:
    async def later(info: RequestInfo) -> int:
        return len(info.body)

    class Object:
        async def __call__(self, info: RequestInfo) -> Estimate:
            return Estimate(len(info.body))

    for size in (7, LARGE_BYTES + 1):
        for estimator in (later, Object(), lambda info: later(info)):
            assert (await estimate(rule(estimator), info_of(size), lambda: 1)).bytes == size


async def test_a_large_body_is_read_in_a_thread_and_a_small_one_here() -> None:
    here, threads = threading.get_ident(), []

    def plain(info: RequestInfo) -> int:
        threads.append(threading.get_ident())
        return len(info.body)

    for size in (LARGE_BYTES, LARGE_BYTES + 1):
        assert (await estimate(rule(plain), info_of(size), lambda: 1)).bytes == size
    assert [thread == here for thread in threads] == [True, False]


async def test_the_workload_of_a_large_body_is_read_ahead_for_an_async_estimator() -> None:
    dialect = Dialect()

    async def later(info: RequestInfo) -> int:
        return info.workload.prompt_tokens

    charged = await estimate(rule(later), info_of(LARGE_BYTES + 1, dialect), lambda: 1)
    assert charged.bytes == LARGE_BYTES + 1
    assert len(dialect.threads) == 1
    assert dialect.threads[0] != threading.get_ident()


async def test_a_dialect_that_fails_ahead_is_no_failure_of_an_estimator_that_does_without() -> None:
    class Failing:
        def read(self, info: RequestInfo) -> Workload:
            raise ZeroDivisionError

    async def later(info: RequestInfo) -> int:
        return 5

    assert (await estimate(rule(later), info_of(LARGE_BYTES + 1, Failing()), lambda: 1)).bytes == 5


async def test_a_failed_estimator_is_logged_and_charged_otherwise(caplog: pytest.LogCaptureFixture) -> None:
    def fails(info: RequestInfo) -> int:
        raise ZeroDivisionError("no such luck")

    with caplog.at_level(logging.ERROR):
        charged = await estimate(rule(fails), info_of(1), lambda: 0)
    assert charged == Estimate(1, notes=("the estimator failed with ZeroDivisionError",))
    assert "no such luck" in caplog.text


@pytest.mark.parametrize("refusal", [UnreadableBody("odd"), TooLarge("too_large", "much")], ids=repr)
async def test_a_refusal_that_an_estimator_raises_is_one(refusal: Exception) -> None:
    def refuses(info: RequestInfo) -> int:
        raise refusal

    for size in (1, LARGE_BYTES + 1):
        with pytest.raises(type(refusal)) as caught:
            await estimate(rule(refuses), info_of(size), lambda: 1)
        assert caught.value is refusal


async def test_what_an_estimate_says_besides_its_bytes_is_kept() -> None:
    said = Estimate(5.5, low=3, basis="pool", parts={"kv": 5}, notes=("a note",))  # type: ignore[arg-type]
    charged = await estimate(rule(lambda info: said), info_of(1), lambda: 1)
    assert charged == Estimate(6, low=3, basis="pool", parts={"kv": 5}, notes=("a note",))
