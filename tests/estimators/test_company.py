"""What requests that run together take but once."""

from __future__ import annotations

import math
import random

import pytest

from gpu_admission.estimators.company import Company

SHARED = 100


class World:
    """Requests that take ``own`` bytes each and ``SHARED`` together; each is at its peak with some chance."""

    idle: int | None = 1000

    def __init__(self, peaks: float = 1.0) -> None:
        self.running: dict[int, int] = {}
        self.peaks = peaks
        self.draw = random.Random(1)
        self.looks = 0

    def resume(self) -> int:
        self.looks += 1
        return 0

    def peak(self) -> int:
        held = sum(own for own in self.running.values() if self.draw.random() < self.peaks)
        return 1000 + held + (SHARED if held else 0)


def played(company: Company, world: World, *, moments: int = 200, most: int = 6, known: bool = True) -> None:
    """Requests of 50 to 400 bytes come and go."""
    draw = random.Random(2)
    for who in range(moments):
        own = draw.randrange(50, 400)
        company.joins(who, float(own + SHARED) if known else math.nan, world)
        world.running[who] = own
        if len(world.running) >= most:
            gone = draw.choice(list(world.running))
            company.leaves(gone, world)
            del world.running[gone]


def test_what_all_take_once_is_found_and_four_fifths_of_it_believed() -> None:
    company = Company(seconds=0)
    played(company, World())
    assert company.shared == pytest.approx(0.8 * SHARED)


def test_moments_in_which_few_are_at_their_peak_do_no_harm() -> None:
    company = Company(seconds=0)
    played(company, World(peaks=0.9))
    assert company.shared == pytest.approx(0.8 * SHARED)


def test_before_enough_was_seen_nothing_is_shared() -> None:
    company = Company(seconds=0)
    played(company, World(), moments=10)
    assert company.shared == 0


def test_two_that_run_together_are_no_company() -> None:
    company, world = Company(seconds=0), World()
    played(company, world, most=2)
    assert company.shared == 0
    assert world.looks == 0


def test_where_one_is_not_known_nothing_is_seen() -> None:
    company = Company(seconds=0)
    played(company, World(), known=False)
    assert company.shared == 0


def test_after_an_out_of_memory_nothing_is_shared_until_it_is_seen_again() -> None:
    company, world = Company(seconds=0), World()
    played(company, world)
    company.ran_out()
    assert company.shared == 0


def test_it_looks_no_more_when_it_has_seen_enough() -> None:
    company, world = Company(seconds=0), World()
    played(company, world, moments=2000)
    assert world.looks <= 202


def test_a_moment_that_is_too_short_shows_nothing() -> None:
    company = Company(seconds=1000)
    played(company, World())
    assert company.shared == 0


def test_memory_that_grows_by_itself_leaves_less_in_common() -> None:
    company, world = Company(seconds=0), World()
    world.idle = 1000 - 300
    played(company, world)
    assert company.shared < 0.5 * SHARED
