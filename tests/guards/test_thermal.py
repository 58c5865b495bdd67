from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_admission.guards import Stage, ThermalGuard
from gpu_admission.guards.verdict import limit_of
from gpu_admission.types import DeviceReading


def at(degrees: float | None, capacity: int | None = 1000) -> list[DeviceReading]:
    return [DeviceReading(temperature=degrees, capacity=capacity)]


def replay(guard: ThermalGuard, trace: Iterable[tuple[float, float | None]]) -> list[tuple[float, int]]:
    """(time, stage) of every change."""
    changes: list[tuple[float, int]] = []
    stage = guard.stage
    for now, degrees in trace:
        limit_of(guard, at(degrees), (), now)
        if guard.stage != stage:
            stage = guard.stage
            changes.append((now, stage))
    return changes


def ten_minutes(seed: int = 1) -> list[tuple[float, float]]:
    """Two looks a second: a card that heats up, hovers at each threshold, and cools down.

    The sensor's noise is 1.5 degrees either way, its slow swing three.
    """
    noise = random.Random(seed)
    plan = [(0, 55), (90, 79.5), (180, 80.5), (270, 85), (360, 90), (420, 91), (510, 84), (600, 60)]
    trace = []
    for tick in range(1201):
        now = tick / 2
        (t0, d0), (t1, d1) = next((a, b) for a, b in itertools.pairwise(plan) if a[0] <= now <= b[0])
        level = d0 + (d1 - d0) * (now - t0) / (t1 - t0)
        swing = 3 * math.sin(now / 5)
        trace.append((now, level + swing + noise.uniform(-1.5, 1.5)))
    return trace


@pytest.mark.parametrize("seed", range(5))
def test_a_hot_ten_minutes_change_the_stage_at_most_once_a_minute(seed: int) -> None:
    changes = replay(ThermalGuard(), ten_minutes(seed))
    gaps = [later - sooner for (sooner, _), (later, _) in itertools.pairwise(changes)]
    assert min(gaps) >= 60.0
    stages = [stage for _, stage in changes]
    assert max(stages) == 3, "it got hot enough to close"
    assert stages == [*sorted(stages[: stages.index(3)]), *sorted(stages[stages.index(3) :], reverse=True)]


def test_without_the_guards_patience_the_same_trace_flaps() -> None:
    """What hysteresis and dwell are for: the trace is a hard one."""
    assert len(replay(ThermalGuard(hysteresis=0, dwell=0), ten_minutes())) > 20


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(20, 110), min_size=2, max_size=300))
def test_no_trace_at_all_changes_the_stage_twice_in_a_minute(temperatures: list[float]) -> None:
    changes = replay(ThermalGuard(), [(n * 2.0, degrees) for n, degrees in enumerate(temperatures)])
    assert all(b - a >= 60.0 for (a, _), (b, _) in itertools.pairwise(changes))


def test_the_stages_shrink_then_clamp_then_close() -> None:
    guard = ThermalGuard(dwell=0)
    assert limit_of(guard, at(79), (), 0.0).bytes is None
    assert (limit_of(guard, at(80), (), 1.0).bytes, guard.clamp) == (750, None)
    assert (limit_of(guard, at(86), (), 2.0).bytes, guard.clamp) == (500, 0.5)
    assert guard.reason == "86 °C: stage 2 of 3, from 85 °C"
    assert limit_of(guard, at(95), (), 3.0).bytes == 0
    assert guard.retry_at == 3.0
    assert limit_of(guard, at(60), (), 4.0).bytes is None
    assert guard.reason == ""
    assert not guard.clamp
    assert not guard.retry_at


def test_a_stage_is_left_only_well_below_its_start() -> None:
    guard = ThermalGuard(dwell=0, hysteresis=5)
    limit_of(guard, at(85), (), 0.0)
    assert limit_of(guard, at(80.1), (), 1.0).bytes == 500
    assert limit_of(guard, at(80), (), 2.0).bytes == 750
    assert limit_of(guard, at(75.1), (), 3.0).bytes == 750
    assert limit_of(guard, at(75), (), 4.0).bytes is None


def test_a_closed_device_says_when_to_come_back() -> None:
    guard = ThermalGuard(dwell=60)
    limit = limit_of(guard, at(99), (), 10.0)
    assert limit.bytes == 0
    assert limit.retry_at == guard.retry_at == 70.0
    assert not limit.restart_only


def test_an_unknown_temperature_is_not_hot() -> None:
    assert limit_of(ThermalGuard(), at(None), (), 0.0).bytes is None
    assert limit_of(ThermalGuard(), (), (), 0.0).bytes is None


def test_a_sensor_that_misses_a_beat_keeps_the_stage_and_one_that_dies_lets_go_of_it() -> None:
    guard = ThermalGuard(dwell=60)
    limit_of(guard, at(92), (), 0.0)
    assert limit_of(guard, [*at(92), *at(None)], (), 61.0).bytes == 0
    assert limit_of(guard, at(None), (), 30.0).bytes == 0
    assert "no longer told" in guard.reason
    assert limit_of(guard, at(None), (), 62.0).bytes is None


def test_without_a_known_capacity_a_stage_can_only_close() -> None:
    guard = ThermalGuard(dwell=0)
    assert limit_of(guard, at(86, None), (), 0.0).bytes is None
    assert guard.clamp == 0.5
    assert limit_of(guard, at(96, None), (), 0.0).bytes == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"stages": ()}, "at least one Stage"),
        ({"stages": (Stage(80, 0.5), Stage(80, 0))}, "each hotter than the one before"),
        ({"stages": (Stage(80, 1.5),)}, "a share is between 0 and 1"),
        ({"stages": (Stage(80, 0.5, clamp=2),)}, "a clamp above 0 and at most 1"),
        ({"hysteresis": -1}, "hysteresis must be 0 or more"),
        ({"dwell": float("nan")}, "dwell must be 0 or more"),
    ],
)
def test_wrong_settings_are_refused_by_name(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ThermalGuard(**options)
