from __future__ import annotations

import copy
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_admission.guards import OutOfMemoryGuard
from gpu_admission.guards.verdict import limit_of
from gpu_admission.types import DeviceReading, Outcome

Kind = Literal["ok", "error", "oom", "fault", "client"]
READINGS = [DeviceReading(total=1000, capacity=1000)]


def tell(guard: OutOfMemoryGuard, now: float, *kinds: Kind) -> int | None:
    return limit_of(guard, READINGS, [Outcome(kind, 10) for kind in kinds], now).bytes


class Door:
    """What the controller does with a guard: one lease after another, refusing while closed."""

    def __init__(self, guard: OutOfMemoryGuard) -> None:
        self.guard = guard
        self.running = 0
        self.now = 0.0

    def enter(self) -> bool:
        ceiling = tell(self.guard, self.now)
        trials = self.guard.trials
        if ceiling == 0 or (trials is not None and self.running >= trials):
            return False
        self.running += 1
        return True

    def leave(self, kind: Kind) -> None:
        self.running -= 1
        tell(self.guard, self.now, kind)

    def open(self) -> None:
        for _ in range(3):
            assert self.enter()
            self.leave("oom")
        assert not self.enter()


@pytest.fixture
def door() -> Door:
    door = Door(OutOfMemoryGuard(cool_down=30, opens_after=3))
    door.open()
    door.now = 30.0
    return door


def test_without_failures_it_has_no_opinion() -> None:
    guard = OutOfMemoryGuard()
    assert tell(guard, 0.0, "ok", "error", "client") is None
    assert (guard.reason, guard.retry_at, guard.trials) == ("", None, None)


def test_the_ceiling_falls_by_a_factor_and_rises_by_steps() -> None:
    guard = OutOfMemoryGuard(factor=0.8, step=0.05, every=10, opens_after=9)
    assert tell(guard, 0.0, "oom") == 800
    assert guard.reason == "requests ran out of memory: 80% of the capacity is given out"
    assert tell(guard, 0.0, "oom") == 640
    assert tell(guard, 9.9) == 640
    assert tell(guard, 10.0) == 690
    assert tell(guard, 45.0) == 840
    assert tell(guard, 50.0) == 890
    assert tell(guard, 80.0) is None
    assert guard.reason == ""


def test_the_ceiling_does_not_fall_below_its_floor() -> None:
    guard = OutOfMemoryGuard(floor=0.5, opens_after=99)
    many: list[Kind] = ["oom"] * 20
    assert tell(guard, 0.0, *many) == 500


def test_recovery_starts_from_the_last_failure() -> None:
    guard = OutOfMemoryGuard(factor=0.5, step=0.1, every=10, opens_after=9)
    tell(guard, 0.0)
    assert tell(guard, 1000.0, "oom") == 500
    assert tell(guard, 1009.0) == 500


def test_without_a_known_capacity_it_can_still_open() -> None:
    guard = OutOfMemoryGuard(opens_after=2)
    assert limit_of(guard, (), [Outcome("oom", 1)], 0.0).bytes is None
    assert limit_of(guard, (), [Outcome("oom", 1)], 0.0).bytes == 0


def test_a_success_between_failures_keeps_it_closed() -> None:
    guard = OutOfMemoryGuard(opens_after=3)
    for _ in range(5):
        tell(guard, 0.0, "oom", "oom", "ok")
    assert tell(guard, 0.0) != 0


def test_after_failures_in_a_row_nobody_enters_for_the_cool_down(door: Door) -> None:
    door.now = 29.9
    assert not door.enter()
    assert door.guard.retry_at == 30.0
    assert door.guard.reason == "3 requests in a row ran out of memory: closed for 30 s"
    assert not limit_of(door.guard, READINGS, (), door.now).restart_only


def test_of_a_crowd_exactly_one_is_let_through_as_a_trial(door: Door) -> None:
    assert [door.enter() for _ in range(100)] == [True] + [False] * 99
    assert "at most 1 at a time" in door.guard.reason


def test_as_many_trials_as_configured() -> None:
    door = Door(OutOfMemoryGuard(cool_down=30, trials=3))
    door.open()
    door.now = 31.0
    assert sum(door.enter() for _ in range(100)) == 3


def test_a_good_trial_closes_the_breaker(door: Door) -> None:
    assert door.enter()
    door.leave("ok")
    assert all(door.enter() for _ in range(20))
    assert door.guard.trials is None


def test_a_trial_that_runs_out_of_memory_opens_it_again(door: Door) -> None:
    assert door.enter()
    door.leave("oom")
    assert not door.enter()
    assert door.guard.retry_at == 60.0
    door.now = 60.0
    assert door.enter()


@pytest.mark.parametrize("end", ["client", "error"])
def test_a_trial_whose_client_left_or_whose_app_failed_gives_its_place_back(door: Door, end: Kind) -> None:
    """BL-84 a, b, c: a disconnect, an answer of 400, an exception that is not out-of-memory."""
    for _ in range(5):
        assert door.enter()
        assert not door.enter()
        door.leave(end)
    assert door.enter()
    door.leave("ok")
    assert door.enter()
    assert door.enter()


def test_a_trial_that_hangs_is_taken_for_lost_after_another_cool_down(door: Door) -> None:
    """BL-84 d."""
    assert door.enter()
    door.now = 59.0
    assert not door.enter()
    assert door.guard.retry_at == 60.0
    door.now = 60.0
    assert door.enter()
    assert not door.enter()
    door.leave("ok")
    assert door.enter(), "one good request is enough, whatever became of the lost one"


def test_a_trial_that_was_never_granted_took_no_place(door: Door) -> None:
    """BL-84 e: refused by the queue before it held a lease."""
    tell(door.guard, door.now)
    assert door.enter()


@pytest.mark.parametrize("end", ["ok", "oom", "error", "client"])
def test_a_request_from_before_it_opened_does_not_move_it(door: Door, end: Kind) -> None:
    door.now = 10.0
    tell(door.guard, door.now, end)
    assert not door.enter()
    assert door.guard.retry_at == 30.0
    assert door.guard.reason.startswith("3 requests in a row")


def test_it_does_not_recover_while_it_is_open(door: Door) -> None:
    door.now = 1000.0
    assert door.enter()
    assert tell(door.guard, door.now) == 512


@given(st.lists(st.tuples(st.sampled_from(["ok", "oom", "client", "error"]), st.floats(0, 100)), max_size=60))
def test_whatever_happens_a_good_request_brings_full_service_back(steps: list[tuple[Kind, float]]) -> None:
    door = Door(OutOfMemoryGuard(cool_down=30))
    for kind, pause in steps:
        door.now += pause
        if door.enter():
            door.leave(kind)
        assert door.guard._share >= 0.25
    door.now += 30.0
    assert door.enter(), "within one cool-down somebody may try"
    door.leave("ok")
    assert door.enter()
    door.now += 150.0
    assert tell(door.guard, door.now) is None


def test_a_copy_has_its_own_state(door: Door) -> None:
    other = copy.deepcopy(OutOfMemoryGuard(opens_after=1))
    assert tell(other, 0.0) is None
    tell(other, 0.0, "oom")
    assert tell(copy.deepcopy(other), 0.0) == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"factor": 0}, "factor must be above 0"),
        ({"step": 2}, "step must be above 0 and at most 1"),
        ({"floor": -1}, "floor must be above 0"),
        ({"every": 0}, "every must be above 0 seconds"),
        ({"cool_down": 0}, "cool_down must be above 0 seconds"),
        ({"opens_after": 0}, "opens_after must be an int of 1 or more"),
        ({"trials": True}, "trials must be an int of 1 or more"),
        ({"trials": 1.5}, "trials must be an int of 1 or more"),
    ],
)
def test_wrong_settings_are_refused_by_name(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        OutOfMemoryGuard(**options)
