from __future__ import annotations

import copy
import os
import subprocess
import sys
import time

import pytest

from gpu_admission.guards import FaultGuard
from gpu_admission.guards.fault import EXIT_CODE
from gpu_admission.guards.verdict import limit_of
from gpu_admission.types import DeviceReading, Outcome

FAULT = Outcome("fault", 1, "AcceleratorError")


def test_other_ends_and_healthy_readings_leave_it_open() -> None:
    guard = FaultGuard()
    outcomes = [Outcome(kind, 1) for kind in ("ok", "error", "oom", "client")]
    limit = limit_of(guard, [DeviceReading(error="x")], outcomes, 0.0)
    assert limit.bytes is None
    assert not limit.restart_only
    assert limit.action is None


def test_a_fault_closes_for_good() -> None:
    guard = FaultGuard()
    limit = limit_of(guard, (), [FAULT], 0.0)
    assert limit.bytes == 0
    assert limit.restart_only
    assert limit.reason == guard.reason == "a request failed with AcceleratorError"
    assert limit_of(guard, (), [Outcome("ok", 1)], 10_000.0).bytes == 0
    assert (limit.retry_at, limit.trials) == (None, None)


def test_what_the_driver_tells_closes_too() -> None:
    guard = FaultGuard()
    assert (
        limit_of(guard, [DeviceReading(faults=("Xid 79", "GPU is lost")), DeviceReading()], (), 0.0).bytes
        == 0
    )
    assert guard.reason == "the driver tells: Xid 79, GPU is lost"


def test_a_callable_is_told_once_and_not_called_by_the_guard_itself() -> None:
    told: list[str] = []
    guard = FaultGuard(on_fault=told.append)
    action = limit_of(guard, (), [Outcome("fault", 1)], 0.0).action
    assert told == []
    assert action is not None
    action()
    assert told == ["a request failed with a device fault"]
    assert limit_of(guard, (), [FAULT], 0.0).action is None


EXITING = """
from gpu_admission.guards import FaultGuard
from gpu_admission.types import Outcome
guard = FaultGuard(on_fault="exit", grace=0)
limit = guard.ceiling((), [Outcome("fault", 1, "X")], 0.0)
try:
    limit.action()
finally:
    print("clean-up that could hang")
"""


def test_exit_ends_the_process_at_once_with_a_code_of_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", EXITING], capture_output=True, text=True, timeout=60)
    assert done.returncode == EXIT_CODE == 86
    assert done.stdout == ""
    assert "device fault: a request failed with X" in done.stderr
    assert "exiting with code 86" in done.stderr


def test_answers_that_are_on_their_way_get_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[object] = []
    monkeypatch.setattr(time, "sleep", happened.append)
    monkeypatch.setattr(os, "_exit", happened.append)
    guard = FaultGuard(on_fault="exit", exit_code=3, grace=2.5)
    action = limit_of(guard, (), [FAULT], 0.0).action
    assert action is not None
    action()
    assert happened == [2.5, 3]


def test_a_copy_shares_settings_and_no_state() -> None:
    first = FaultGuard()
    second = copy.deepcopy(first)
    limit_of(first, (), [FAULT], 0.0)
    assert limit_of(second, (), (), 0.0).bytes is None


def test_wrong_settings_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="on_fault must be"):
        FaultGuard(on_fault="explode")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="exit_code must be between 1 and 255"):
        FaultGuard(exit_code=0)
    with pytest.raises(ValueError, match="grace must be 0 seconds or more"):
        FaultGuard(grace=-1)
