"""The controller: one budget, its leases, and the only place that waits."""

from gpu_admission.admission.controller import Admission

__all__ = ["Admission"]
