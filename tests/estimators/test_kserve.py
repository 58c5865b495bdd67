"""``KServeTensors``."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_admission.estimators import KServeTensors
from gpu_admission.types import Workload


def test_tensors_are_taken_times_a_factor_and_a_constant_is_added() -> None:
    estimate = KServeTensors(factor=2.5, constant="1MiB").estimate(Workload(tensor_bytes=1000))
    assert estimate.bytes == 2**20 + 2500
    assert estimate.parts == {"constant": 2**20, "2.5 x input tensors": 2500}


@pytest.mark.parametrize("options", [{"factor": 0}, {"factor": float("nan")}, {"constant": "much"}])
def test_an_option_that_makes_no_sense_is_named(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        KServeTensors(**options)
