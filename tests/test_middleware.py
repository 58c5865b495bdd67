"""The middleware's constructor, and its step from one request to the next."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_admission import Admission, GPUAdmission
from tests.cases.harness import working

ADMISSION = Admission(capacity=100, estimator=1)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"admission": ADMISSION, "capacity": 5, "timeout": 1}, TypeError, "not both: capacity, timeout"),
        ({"admission": 5}, TypeError, "admission must be an Admission, not int"),
        ({"admission": Admission}, TypeError, "admission must be an Admission"),
        ({"capacity": 100}, TypeError, "estimator is required"),
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
