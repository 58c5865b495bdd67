"""The middleware's constructor, and its step from one request to the next."""

from __future__ import annotations

import gc
from typing import Any

import prometheus_client
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.testclient import TestClient

from gpu_admission import Admission, Estimate, GPUAdmission
from gpu_admission.admission.rebuilt import Rebuilds
from gpu_admission.observe import Metrics
from gpu_admission.types import ASGIApp
from tests.cases.harness import working

ADMISSION = Admission(capacity=100, estimator=1)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"admission": ADMISSION, "capacity": 5, "timeout": 1}, TypeError, "not both: capacity, timeout"),
        (
            {"admission": ADMISSION, "exclude": ["/a"]},
            TypeError,
            r"write Admission\(exclude=\.\.\.\) instead",
        ),
        ({"admission": 5}, TypeError, "admission must be an Admission, not int"),
        ({"admission": Admission}, TypeError, "admission must be an Admission"),
        ({"capacity": 100, "estimator": None}, TypeError, "estimator must be a size"),
        (
            {"capacity": 100, "estimator": 1, "timeut": 3},
            TypeError,
            "no setting 'timeut'; did you mean 'timeout'",
        ),
        ({"capacity": 100, "estimator": 1, "zzz": 3}, TypeError, "no setting 'zzz'$"),
        ({"capacity": 0, "estimator": 1}, ValueError, "capacity must be above 0"),
    ],
)
def test_wrong_options_are_refused_with_their_name(
    options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        GPUAdmission(working, **options)


def test_it_has_the_admission_that_it_was_given_or_one_of_its_own() -> None:
    assert GPUAdmission(working, admission=ADMISSION).admission is ADMISSION
    own = GPUAdmission(working, capacity="1GiB", estimator="1MiB").admission
    assert own.snapshot().capacity == 2**30


# built again


def bare() -> Starlette:
    async def handle(request: Request) -> Response:
        return Response()

    return Starlette(routes=[Route("/g", handle, methods=["POST"])])


def starlette(**settings: Any) -> Starlette:
    app = bare()
    app.add_middleware(GPUAdmission, **settings)
    return app


def budget_in(stack: ASGIApp) -> Admission:
    while not isinstance(stack, GPUAdmission):
        stack = stack.app  # type: ignore[attr-defined]
    return stack.admission


def test_a_stack_that_is_built_ever_again_is_remembered_once() -> None:
    class Layer: ...

    built, app, stands = Rebuilds(), bare(), Layer()
    settings: dict[str, Any] = {"capacity": 100, "estimator": 1, "observers": [lambda event: None]}
    budget = built.admission(stands, app, **settings)
    for _ in range(50):
        assert built.admission(Layer(), app, **settings) is budget
        gc.collect(0)
    assert len(built) == 2


def test_a_stack_that_is_built_again_goes_on_with_its_budget_and_its_metrics() -> None:
    registry = prometheus_client.CollectorRegistry()
    app = starlette(capacity=100, estimator=60, observers=[Metrics(registry=registry)])
    first = budget_in(app.build_middleware_stack())
    assert budget_in(app.build_middleware_stack()) is first


def test_a_stack_that_is_built_again_goes_on_with_a_budget_of_plain_settings() -> None:
    app = starlette(capacity="20GiB", estimator="1GiB")
    app.middleware_stack = stack = app.build_middleware_stack()
    assert budget_in(app.build_middleware_stack()) is budget_in(stack)


@pytest.mark.anyio
async def test_a_stack_that_is_built_again_knows_what_work_of_the_last_one_still_holds() -> None:
    app = starlette(capacity=100, estimator=60)
    lease = await budget_in(app.build_middleware_stack()).entrance.acquire(Estimate(60))
    assert budget_in(app.build_middleware_stack()).in_use == 60
    lease.release()


def test_an_app_that_is_wrapped_twice_with_the_same_settings_has_one_budget() -> None:
    settings: Any = {"capacity": "1GiB", "estimator": {"/g": "1MiB"}}
    app = starlette(**settings)
    app.add_middleware(GPUAdmission, **settings)
    inner = app.build_middleware_stack()
    outer = GPUAdmission(GPUAdmission(app, **settings), **settings)
    assert outer.admission is outer.app.admission is budget_in(inner)  # type: ignore[attr-defined]


def test_the_same_settings_in_another_event_loop_are_another_budget() -> None:
    settings: Any = {"capacity": "1GiB", "estimator": {"/g": "1MiB"}}
    app = bare()
    one = GPUAdmission(app, **settings)
    with TestClient(one) as client:
        assert client.post("/g").status_code == 200
        other = GPUAdmission(app, **settings)
        assert other.admission is not one.admission
        assert TestClient(other).post("/g").status_code == 200


@pytest.mark.parametrize("other", [{"capacity": 101}, {"capacity": 100, "timeout": 5}])
def test_other_settings_for_the_same_app_are_another_budget(other: dict[str, Any]) -> None:
    one = GPUAdmission(working, capacity=100, estimator=1)
    assert GPUAdmission(working, estimator=1, **other).admission is not one.admission


def test_the_same_settings_for_another_app_are_another_budget() -> None:
    settings: Any = {"capacity": 100, "estimator": {"/g": 1}}
    assert GPUAdmission(starlette(**settings), **settings).admission is not (
        GPUAdmission(starlette(**settings), **settings).admission
    )


def test_observers_are_told_of_one_budget_whichever_app_is_before_it() -> None:
    settings: Any = {
        "capacity": 100,
        "estimator": 1,
        "observers": [Metrics(registry=prometheus_client.CollectorRegistry())],
    }
    one = GPUAdmission(starlette(**settings), **settings)
    assert GPUAdmission(starlette(**settings), **settings).admission is one.admission


def test_a_middleware_that_is_gone_leaves_nothing_to_the_next() -> None:
    app = starlette(capacity=100, estimator=1)
    admission = budget_in(app.build_middleware_stack())
    admission.drain()
    assert not budget_in(app.build_middleware_stack()).snapshot().draining


def test_an_app_that_nothing_can_refer_to_weakly_has_a_budget_of_its_own() -> None:
    class Slotted:
        __slots__ = ()

        async def __call__(self, *call: Any) -> None: ...

    app = Slotted()
    one = GPUAdmission(app, capacity=100, estimator=1)
    assert GPUAdmission(app, capacity=100, estimator=1).admission is not one.admission
