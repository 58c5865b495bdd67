"""What can be known never to fit, before any request."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from starlette.requests import Request

from gpu_admission import Admission, Estimate, Lane, RequestInfo, Workload
from gpu_admission.estimators import Constant, Linear

STRICT: dict[str, Any] = {"capacity": 100, "strict": True}


class Formula:
    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[Workload] = []

    def __call__(self, info: RequestInfo) -> int:
        return 1

    def estimate(self, workload: Workload) -> Any:
        self.asked.append(workload)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"estimator": 101}, "estimator: even the smallest request needs 101 B"),
        ({"estimator": Constant(101)}, "estimator: even the smallest request needs 101 B"),
        (
            {"estimator": {"/a": 1, "/b/**": "1KiB"}},
            "estimator['/b/**']: even the smallest request needs 1.00 KiB",
        ),
        (
            {"estimator": Linear({"prompt_tokens": 1}, constant=100)},
            "estimator: even the smallest request needs 101 B",
        ),
        ({"estimator": Formula(Estimate(101))}, "estimator: even the smallest request needs 101 B"),
        ({"estimator": 1, "fallback": 101}, "fallback: a body that can't be read needs 101 B"),
        ({"estimator": 91, "margin": 0.1}, "no request may ever hold more than 90 B"),
        ({"estimator": 51, "lanes": [Lane("a", limit=0.5), Lane("b")]}, "may ever hold more than 50 B"),
    ],
)
def test_a_size_that_can_never_fit_is_refused_under_strict(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match="strict=True") as refused:
        Admission(**STRICT, **settings)
    assert text in str(refused.value)
    assert str(refused.value).endswith("it is refused (413) (strict=True)")


@pytest.mark.parametrize(
    "settings",
    [
        {"estimator": 100, "fallback": 100},
        {"estimator": lambda info: 10**9},
        {"estimator": Formula(LookupError())},
        {"estimator": Formula(10**9)},
        {"estimator": 80, "overcommit": 1.5},
        {"estimator": 51, "lanes": [Lane("a", limit=0.5), Lane("b")], "lane": lambda info: "b"},
    ],
)
def test_what_may_fit_or_can_not_be_known_starts(settings: dict[str, Any]) -> None:
    assert Admission(**STRICT, **settings).snapshot().capacity >= 100


def test_a_formula_is_asked_about_the_smallest_request() -> None:
    formula = Formula(Estimate(1))
    Admission(**STRICT, estimator=formula)
    assert formula.asked == [Workload(prompt_tokens=1, new_tokens=1, width=8, height=8)]


def test_without_strict_it_is_said_when_work_begins(caplog: pytest.LogCaptureFixture) -> None:
    admission = Admission(capacity=100, estimator=101)
    assert caplog.text == ""
    admission.startup.start()
    (warning,) = (record.message for record in caplog.records if record.levelname == "WARNING")
    assert warning == (
        "estimator: even the smallest request needs 101 B, and no request may ever hold more than 100 B: "
        "it is refused (413)"
    )


async def answer(request: Request) -> None: ...


DOORS = [
    (lambda admission: admission.admit(answer, estimator=Constant(101)), "admit on answer"),
    (lambda admission: admission.dependency(101), "dependency"),
]


@pytest.mark.parametrize(("make", "name"), DOORS)
def test_a_doors_own_size_that_can_never_fit_is_refused_under_strict(make: Any, name: str) -> None:
    admission = Admission(capacity=100, estimator=1, strict=True)
    with pytest.raises(ValueError, match=f"{name}: even the smallest request needs 101 B"):
        make(admission)


@pytest.mark.anyio
@pytest.mark.parametrize(("make", "name"), DOORS)
async def test_a_doors_own_size_that_can_never_fit_is_warned_of_at_the_start_and_later(
    make: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    admission = Admission(capacity=100, estimator=1)
    early = make(admission)
    said = f"{name}: even the smallest request needs 101 B, and no request may ever hold more than 100 B"
    assert said not in caplog.text
    async with admission:
        assert caplog.text.count(said) == 1
        late = make(admission)
        assert caplog.text.count(said) == 2
        admission.dependency(100)
    assert caplog.text.count("even the smallest") == 2
    assert early
    assert late


def test_a_door_that_is_gone_is_not_spoken_of() -> None:
    admission = Admission(capacity=100, estimator=1)
    door = admission.dependency(101)
    assert len(admission.startup.misfits()) == 1
    del door
    gc.collect()
    assert admission.startup.misfits() == []
