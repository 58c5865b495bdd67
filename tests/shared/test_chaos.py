"""Processes are killed, stopped and cut off while they use one budget, and what it lies on is harmed.

An auditor that trusts none of them adds up what they say that they worked on; see ``audit``. In
the last tests they do what a budget must never do, and it has to find that.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.shared import chaos
from tests.shared.chaos import HARMS, TTL, Round, killed
from tests.shared.chaosworker import CAPACITY, trust_a_lost_log
from tests.shared.redisserver import needs_server
from tests.waiting import until

ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "20"))
FIRST = int(os.environ.get("CHAOS_FIRST", "0"))
FIGURES = os.environ.get("CHAOS_FIGURES")
"""A file that each round adds its figures to."""
BACK = {"folder": 0.5, "redis": 1.5 * TTL + 0.5}
"""Seconds of the log until all bytes of processes that were killed can be had. Half a second for the last
look."""
GOES_ON = {"folder": 5 * TTL + 10, "redis": 5 * TTL + 20}
"""Seconds until all work again, on a machine that has other work: a log that was lost settles for one ttl."""
KINDS = ["folder", pytest.param("redis", marks=needs_server)]
pytestmark = pytest.mark.slow


def options_for(kind: str, harm: Callable[[Round], None], seed: int) -> list[str]:
    """A server that keeps its log in every other round in which it is started again."""
    keeps = kind == "redis" and harm is chaos.restarted and seed // len(HARMS[kind]) % 2
    return ["--appendonly", "yes", "--appendfsync", "always"] if keeps else []


def note(**figures: object) -> None:
    if FIGURES:
        with open(FIGURES, "a") as file:
            file.write(json.dumps(figures) + "\n")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(FIRST, FIRST + ROUNDS))
def test_whatever_is_done_to_it_the_budget_is_never_over_and_ends_at_zero(
    kind: str, seed: int, tmp_path: Path
) -> None:
    """Each round begins with another harm; two more follow, and a kill."""
    chance = random.Random(seed)
    harms = HARMS[kind]
    done = [harms[seed % len(harms)], *chance.sample(harms, 2), killed]
    count = 32 if seed % 10 == 9 else 4
    options = options_for(kind, done[0], seed)
    r = Round(kind, tmp_path, chance, *options, through_proxy=chaos.failed_over in done)
    with r.begun(count, tasks=1 if count == 32 else 2):
        for harm in done:
            time.sleep(chance.uniform(0.1, 0.4))
            harm(r)
        went_on = r.workers.wait_until_they_work(GOES_ON[kind])
        back = r.all_back(60)
    peak, works = r.workers.audit.peak(), r.workers.audit.works()
    names = [harm.__name__ for harm in done]
    note(
        kind=kind,
        seed=seed,
        harms=names,
        count=count,
        peak=peak.bytes,
        works=len(works),
        entries=r.reader.entries,
        went_on=round(went_on, 3),
        back=round(back, 3),
        wrong=r.reader.wrong[:3],
    )
    assert peak.bytes <= CAPACITY, f"{names}: {peak}"
    assert not r.reader.wrong, f"{names}: {r.reader.wrong}"
    assert len(works) > 20
    hidden = {chaos.locks_removed, chaos.folder_removed} & set(done)  # then only time can tell who has died
    assert back < (BACK["redis"] + 1 if hidden else BACK[kind]), names


def test_a_log_that_was_cut_short_is_begun_anew(tmp_path: Path) -> None:
    r = Round("folder", tmp_path, random.Random(1))
    with r.begun(4):
        for _ in range(3):
            chaos.log_cut_short(r)
            r.workers.wait_until_they_work(GOES_ON["folder"])
        assert r.all_back(60) < BACK["folder"]


PLANTED = {
    "raises the limit": chaos.killed,
    "grants twice": chaos.killed,
    "given back too early": chaos.killed,
    "evicts the living": chaos.killed,
    "looks dead": chaos.killed,
    "claims nothing": chaos.log_removed,
    "a lost log is empty": chaos.log_removed,
}
"""What must never be done, and what it takes to show."""


def work_for_long(r: Round, harm: Callable[[Round], None], flaw: str = "") -> None:
    """Some of it for longer than a lost log settles."""
    with r.begun(4, at_most=2 * TTL, flaw=flaw):
        for _ in range(2):
            harm(r)
            time.sleep(2 * TTL)
        r.workers.kill(*r.workers.running)


@pytest.mark.parametrize("flaw", PLANTED)
def test_a_planted_over_admission_is_found(
    flaw: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if flaw == "a lost log is empty":
        trust_a_lost_log(monkeypatch.setattr)  # the reader is often the first to miss it
    assert any(planted_peak(flaw, tmp_path / str(number)) > CAPACITY for number in range(5))


def planted_peak(flaw: str, folder: Path) -> int:
    """The most that was in use in one round. On a slow machine there may be too little work to show more."""
    folder.mkdir()
    r = Round("folder", folder, random.Random(1))
    work_for_long(r, PLANTED[flaw], flaw=flaw)
    peak = r.workers.audit.peak()
    note(kind="planted", flaw=flaw, peak=peak.bytes, wrong=r.reader.wrong[:2])
    return peak.bytes


@pytest.mark.parametrize("harm", [chaos.killed, chaos.log_removed])
def test_the_same_without_a_flaw_is_never_over(harm: Callable[[Round], None], tmp_path: Path) -> None:
    r = Round("folder", tmp_path, random.Random(1))
    work_for_long(r, harm)
    peak = r.workers.audit.peak()
    note(kind="planted", flaw="none", peak=peak.bytes, wrong=r.reader.wrong[:2])
    assert CAPACITY / 2 < peak.bytes <= CAPACITY
    assert not r.reader.wrong


def test_a_planted_leak_is_found(tmp_path: Path) -> None:
    r = Round("folder", tmp_path, random.Random(1))
    with r.begun(2):
        r.workers.add(r.where, flaw="never says ends")
        until(lambda: stands_still(r))
        r.workers.kill(*r.workers.running)


def stands_still(r: Round) -> bool:
    try:
        r.workers.wait_until_they_work(TTL)
    except AssertionError as error:
        return "did not go on" in str(error)
    return False
