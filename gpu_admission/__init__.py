"""ASGI middleware that lets GPU work in only when its bytes fit."""

import sys

from gpu_admission import rules, types
from gpu_admission.admission import Admission
from gpu_admission.admission.context import current_lease
from gpu_admission.admission.lease import Lease
from gpu_admission.budget.lanes import Lane
from gpu_admission.errors import (
    AdmissionError,
    QueueFull,
    QueueTimeout,
    Rejected,
    TooLarge,
    Unavailable,
    UnreadableBody,
)
from gpu_admission.middleware import GPUAdmission
from gpu_admission.request import Dialect, Estimator, Part, RequestInfo
from gpu_admission.types import Device, DeviceReading, Estimate, Guard, Snapshot, Workload
from gpu_admission.workloads import choose

__all__ = [
    "Admission",
    "AdmissionError",
    "Device",
    "DeviceReading",
    "Estimate",
    "Estimator",
    "GPUAdmission",
    "Guard",
    "Lane",
    "Lease",
    "QueueFull",
    "QueueTimeout",
    "Rejected",
    "RequestInfo",
    "Snapshot",
    "TooLarge",
    "Unavailable",
    "UnreadableBody",
    "Workload",
    "current_lease",
]

# Dialects import ``request``: what chooses among them is handed to it here.
RequestInfo.choose_dialect = choose
# Where these stood in 0.1, for programs that import them from there.
sys.modules[f"{__name__}.pickers"] = rules
vars(types).update(Dialect=Dialect, Estimator=Estimator, Part=Part, RequestInfo=RequestInfo)
