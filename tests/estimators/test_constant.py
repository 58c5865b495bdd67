"""``Constant``."""

from __future__ import annotations

import pytest

from gpu_admission.estimators import Constant
from gpu_admission.request import RequestInfo
from gpu_admission.types import Workload


def test_it_reads_no_body_and_gives_its_size() -> None:
    constant = Constant("1.5GiB", basis="pool")
    estimate = constant(RequestInfo({"type": "http", "path": "/"}))
    assert not constant.needs_body
    assert (estimate.bytes, estimate.basis) == (3 * 2**29, "pool")
    assert constant.estimate(Workload()) is estimate


@pytest.mark.parametrize("size", [0, -1, "0B", "much", None, 1.5])
def test_a_size_that_is_none_is_refused(size: object) -> None:
    with pytest.raises((TypeError, ValueError), match="Constant size"):
        Constant(size)  # type: ignore[arg-type]
