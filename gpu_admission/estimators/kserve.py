"""``KServeTensors``: inference calls that say nothing but the shapes of their input tensors."""

from __future__ import annotations

import math

from gpu_admission.estimators.terms import clamp, render
from gpu_admission.request import RequestInfo
from gpu_admission.sizes import parse_bytes
from gpu_admission.types import Estimate, Workload


class KServeTensors:
    """A multiple of the bytes of the input tensors, and a constant.

    ``factor`` covers inputs, outputs and everything in between: measure it, since every model has
    its own. ``constant`` is what even an empty call takes: bytes, or text such as ``"64MiB"``.
    """

    def __init__(self, *, factor: float = 4.0, constant: int | str = 0) -> None:
        if not 0 < factor <= 2**20:
            raise ValueError(f"factor must be above 0 and at most 2**20, got {factor!r}")
        self.factor = factor
        self.constant = parse_bytes(constant, name="constant")
        self._scaled = math.ceil(factor * 2**20)

    def __call__(self, info: RequestInfo, /) -> Estimate:
        return self.estimate(info.workload)

    def estimate(self, workload: Workload) -> Estimate:
        """Bytes of a call whose input tensors have ``tensor_bytes``."""
        tensors = -(-workload.tensor_bytes * self._scaled // 2**20)
        parts = {"constant": self.constant, f"{self.factor:g} x input tensors": tensors}
        return Estimate(clamp(self.constant + tensors), None, "device", parts)

    def explain(self, workload: Workload) -> str:
        """The terms of ``workload``, as text."""
        return render("KServeTensors", self.estimate(workload))

    def __repr__(self) -> str:
        return f"KServeTensors(factor={self.factor:g}, constant={self.constant})"
