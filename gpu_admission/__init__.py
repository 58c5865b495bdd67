"""ASGI middleware that lets GPU work in only when its bytes fit."""

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
from gpu_admission.request import Estimator, RequestInfo
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
