"""The package's own means of testing, under the names that these tests use."""

from typing import Any

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
    "saying",
    "scenario",
    "settle",
    "until",
    "working",
]


def saying(**said: Any) -> dict[str, Any]:
    """Keys of a call's scope that say to the app behind what it is to do."""
    return {f"test.{name}": value for name, value in said.items()}
