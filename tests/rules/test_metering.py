"""Which requests are metered and what each is charged: rules, estimators and their failures."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from gpu_admission import RequestInfo, Workload
from gpu_admission.rules.metering import Metering, Rule
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
    [
        *((method, True) for method in ("POST", "PUT", "PATCH", "DELETE", "post", "Put", "MADE-UP")),
        *((method, False) for method in ("GET", "HEAD", "OPTIONS", "TRACE", "get")),
    ],
)
def test_h1_every_method_that_may_carry_work_is_metered_in_any_case(method: str, metered: bool) -> None:
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


@pytest.mark.parametrize("setting", ["routes", "websockets"])
def test_a_path_that_a_setting_names_and_a_dict_of_estimators_lacks_is_an_error_at_the_start(
    setting: str,
) -> None:
    named: dict[str, Any] = {setting: ["/v1/chat", "/v1/images"]}
    with pytest.raises(ValueError, match=rf"{setting} names '/v1/images', .*: it has '/v1/chat', '/v2/\*\*'"):
        Metering({"/v1/chat": 1, "/v2/**": 2}, **named)
    assert Metering({"/v1/*": 1}, **named).rule(http_scope(path="/v1/images")) is not None
    assert Metering(1, **named).rule(http_scope(path="/v1/images")) is not None
    wide: dict[str, Any] = {setting: ["/v1/**"]}
    Metering({"/v2": 1}, **wide)  # which of its paths there are is not known
