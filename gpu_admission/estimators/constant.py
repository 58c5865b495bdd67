"""``Constant``: every request takes the same. Reads nothing, so no body is read for it."""

from __future__ import annotations

from typing import Literal

from gpu_admission.estimators.terms import render
from gpu_admission.request import RequestInfo
from gpu_admission.sizes import parse_bytes
from gpu_admission.types import Estimate, Workload


class Constant:
    """The same ``size`` for every request: bytes, or text such as ``"1.2GiB"``.

    Raises ``ValueError`` for less than one byte: leave a route out with ``exclude`` instead.
    """

    needs_body = False

    def __init__(self, size: int | str, *, basis: Literal["device", "pool"] = "device") -> None:
        self._bytes = parse_bytes(size, name="Constant size")
        if self._bytes < 1:
            raise ValueError("Constant size must be at least 1 byte; use exclude to leave a route unmetered")
        self.fixed = Estimate(self._bytes, basis=basis, parts={"constant": self._bytes})

    def __call__(self, info: RequestInfo, /) -> Estimate:
        return self.fixed

    def estimate(self, workload: Workload) -> Estimate:
        """The constant, whatever ``workload`` is."""
        return self.fixed

    def explain(self, workload: Workload) -> str:
        """The constant, as text."""
        return render("Constant", self.fixed)

    def __repr__(self) -> str:
        return f"Constant({self._bytes})"
