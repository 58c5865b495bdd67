"""The package's own means of testing, under the names that these tests use."""

from gpu_admission.testing.calls import (
    Call,
    Header,
    StreamedCost,
    answer,
    chunks,
    cost,
    http_scope,
    read_body,
)
from gpu_admission.testing.scene import CAPACITY, Scene, scenario, settle, until, working

__all__ = [
    "CAPACITY",
    "Call",
    "Header",
    "Scene",
    "StreamedCost",
    "answer",
    "chunks",
    "cost",
    "http_scope",
    "read_body",
    "scenario",
    "settle",
    "until",
    "working",
]
