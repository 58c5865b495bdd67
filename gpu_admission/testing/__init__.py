"""Tools to test a service behind an admission: calls by hand, scenes, a fake device, conformance checks.

pytest's fixture is in ``gpu_admission.testing.plugin``.
"""

from gpu_admission.testing.calls import Call, StreamedCost, answer, chunks, cost, http_scope, read_body
from gpu_admission.testing.conformance import check_device, check_dialect, check_estimator, check_guard
from gpu_admission.testing.devices import FakeDevice, look
from gpu_admission.testing.logs import check_log
from gpu_admission.testing.samegrants import check_same_grants
from gpu_admission.testing.scene import Scene, scenario, settle, until, working

__all__ = [
    "Call",
    "FakeDevice",
    "Scene",
    "StreamedCost",
    "answer",
    "check_device",
    "check_dialect",
    "check_estimator",
    "check_guard",
    "check_log",
    "check_same_grants",
    "chunks",
    "cost",
    "http_scope",
    "look",
    "read_body",
    "scenario",
    "settle",
    "until",
    "working",
]
