"""What requests that run together take but once."""

from __future__ import annotations

import random
from typing import Any

import pytest

from gpu_admission.estimators.company import Company, own
from gpu_admission.runtime import clock

CAPACITY = 3000
SHARE = 0.2
ROUTE = "/r"


class World:
    """Requests of which each takes ``SHARE`` with the others; each is at its peak with some chance."""

    idle: int | None = 1000

    def __init__(self, peaks: float = 1.0) -> None:
        self.running: dict[int, int] = {}
        self.peaks = peaks
        self.draw = random.Random(1)
        self.looks = 0
        self.shares = True

    def resume(self) -> int:
        self.looks += 1
        return 0

    def peak(self) -> int:
        held = [size for size in self.running.values() if self.draw.random() < self.peaks]
        if not held or not self.shares:
            return 1000 + sum(held)
        return 1000 + int(sum(held) * (1 - SHARE) + SHARE * sum(held) / len(held))


def alone(route: str, features: tuple[float, ...], count: int) -> float | None:
    """Requests take as many bytes as they ask for."""
    return features[0] if route == ROUTE else None


class Play:
    """Requests of 300 to 400 bytes that come and go, while a clock is set by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.who = 0.0, 0
        self.draw = random.Random(2)
        monkeypatch.setattr(clock, "monotonic", lambda: self.now)

    def begins(self, company: Company, world: World) -> None:
        company.joins(self.who, world)
        world.running[self.who] = self.draw.randrange(300, 400)
        self.who += 1

    def ends(self, company: Company, world: World, *, well: bool = True, route: str = ROUTE) -> None:
        who = next(iter(world.running))
        company.leaves(who, world)
        company.ended(who, route, (float(world.running.pop(who)),) if well else None)

    def waves(self, company: Company, world: World, count: int = 8, *, most: int = 6, **ended: Any) -> None:
        """``most`` begin together, and end one after the other."""
        for _ in range(count):
            for _ in range(most):
                self.begins(company, world)
            for _ in range(most):
                self.now += 1
                self.ends(company, world, **ended)

    def stream(self, company: Company, world: World, count: int = 60, *, most: int = 6) -> None:
        """One begins as another ends."""
        for _ in range(count):
            self.now += 1
            self.begins(company, world)
            if len(world.running) > most:
                self.now += 1
                self.ends(company, world)


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Play:
    return Play(monkeypatch)


def test_what_all_take_once_is_found_and_most_of_it_believed(play: Play) -> None:
    company = Company()
    play.waves(company, World())
    assert company.shared(alone, CAPACITY) == pytest.approx(0.9 * SHARE, rel=0.05)


def test_requests_that_began_apart_show_nothing_by_themselves(play: Play) -> None:
    company, world = Company(), World(peaks=0.5)
    play.stream(company, world)
    assert company.shared(alone, CAPACITY) == 0


def test_where_those_that_began_together_share_nothing_others_only_look_as_if_they_did(play: Play) -> None:
    company, world = Company(), World()
    world.shares = False
    play.waves(company, world, 3)
    world.peaks = 0.5
    play.stream(company, world)
    assert company.shared(alone, CAPACITY) == 0


def test_moments_in_which_some_are_not_at_their_peak_do_no_harm(play: Play) -> None:
    company, world = Company(), World(peaks=0.8)
    play.waves(company, world, 20)
    assert company.shared(alone, CAPACITY) <= 0.9 * SHARE * 1.05


def test_what_is_shared_is_never_more_than_a_quarter(play: Play) -> None:
    company = Company()
    play.waves(company, World(peaks=0.1))
    assert company.shared(alone, CAPACITY) <= 0.25


def test_before_enough_was_seen_nothing_is_shared(play: Play) -> None:
    company = Company()
    play.waves(company, World(), 2)
    assert company.shared(alone, CAPACITY) == 0


def test_two_that_run_together_are_no_company(play: Play) -> None:
    company, world = Company(), World()
    play.waves(company, world, 100, most=2)
    assert company.shared(alone, CAPACITY) == 0
    assert world.looks == 0


def test_moments_that_leave_most_of_the_device_free_do_not_count(play: Play) -> None:
    company = Company()
    play.waves(company, World())
    assert company.shared(alone, 100 * CAPACITY) == 0


@pytest.mark.parametrize("ended", [{"well": False}, {"route": "/unknown"}])
def test_those_that_failed_or_are_not_known_show_nothing(play: Play, ended: dict[str, Any]) -> None:
    company = Company()
    play.waves(company, World(), **ended)
    assert company.shared(alone, CAPACITY) == 0


def test_what_requests_take_alone_may_be_known_better_later(play: Play) -> None:
    company = Company()
    play.waves(company, World())
    assert company.shared(lambda *ask: (alone(*ask) or 0) * 0.5, CAPACITY) == 0
    company.weigh_again()
    assert company.shared(alone, CAPACITY) > 0.5 * SHARE


def test_after_an_out_of_memory_nothing_is_shared_until_it_is_seen_again(play: Play) -> None:
    company, world = Company(), World()
    play.waves(company, world)
    company.ran_out()
    assert company.shared(alone, CAPACITY) == 0
    play.waves(company, world)
    assert company.shared(alone, CAPACITY) > 0


def test_what_was_seen_before_a_restart_holds_until_enough_is_seen_again(play: Play) -> None:
    company, world = Company(), World()
    company.keep(0.1)
    assert company.shared(alone, CAPACITY) == 0.1
    world.shares = False
    play.waves(company, world)
    assert company.shared(alone, CAPACITY) == 0


def test_it_looks_no_more_when_it_has_seen_enough(play: Play) -> None:
    company, world = Company(), World()
    play.waves(company, world, 300)
    assert not company.is_learning
    looks = world.looks
    play.waves(company, world, 20)
    assert world.looks == looks


def test_a_moment_that_is_too_short_shows_nothing(play: Play) -> None:
    company = Company(seconds=1000)
    play.waves(company, World())
    assert company.shared(alone, CAPACITY) == 0


def test_charges_that_fill_the_device_leave_room_for_what_is_shared() -> None:
    for size in (100, 250, 500):
        charge = own(size, SHARE, largest=500, capacity=CAPACITY)
        count = CAPACITY // charge
        assert count * size * (1 - SHARE) + 500 * SHARE <= CAPACITY
        assert charge < size or size == 500


def test_nothing_is_taken_off_where_nothing_is_shared_or_one_fills_the_device() -> None:
    assert own(100, 0.0, largest=500, capacity=CAPACITY) == 100
    assert own(CAPACITY, SHARE, largest=500, capacity=CAPACITY) == CAPACITY
