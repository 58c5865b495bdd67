"""What any log must do to carry a shared budget, as checks for your own.

Owns what is asked of the log alone; that ledgers on it stay equal is checked in ``samegrants``.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

from gpu_admission.shared.process import new_name
from gpu_admission.shared.protocol import Entry, Log


class Recorder:
    """A listener that keeps what it is told."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.snapshots: list[bytes | None] = []
        self.is_reading = True
        self.away: str | None = None

    def received(self, entries: Sequence[Entry]) -> None:
        self.entries.extend(entries)

    def restarted(self, snapshot: bytes | None) -> None:
        self.snapshots.append(snapshot)
        self.entries.clear()
        self.is_reading = True

    def snapshot(self) -> bytes:
        return b"\n".join(entry.data for entry in self.entries)

    def went_away(self, why: str) -> None:
        self.away = why

    def came_back(self) -> None:
        self.away, self.is_reading = None, False

    def said(self) -> list[bytes]:
        """Entries of these checks, without those that the log begins with."""
        return [entry.data for entry in self.entries if entry.data.startswith(b"check")]


class Way:
    """One process's log with its listener."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.process = new_name()
        self.heard = Recorder()
        log.start(self.process, self.heard)
        self.wait_for(lambda: not self.heard.is_reading, "a log reports came_back after its start")

    def wait_for(self, holds: Callable[[], bool], sentence: str, seconds: float = 5.0) -> None:
        end = time.monotonic() + seconds
        while not holds():
            self.log.catch_up()
            if time.monotonic() > end:
                raise AssertionError(sentence)
            time.sleep(0.001)


def check_log(make: Callable[[], Log], *, entries: int = 200, seed: int = 0) -> None:
    """It orders, stamps, keeps, wakes and knows the living as ``shared.protocol.Log`` says.

    ``make`` returns a new log object each time, all for the same new place: ``lambda: MyLog("here")``.
    """
    ways = [Way(make()) for _ in range(3)]
    try:
        _check_order(ways, entries, random.Random(seed))
        _check_newcomer(make, ways)
        _check_waking(ways)
        _check_deaths(ways)
        _check_large(ways)
    finally:
        for way in ways:
            way.log.stop()


def _check_order(ways: list[Way], entries: int, chance: random.Random) -> None:
    for number in range(entries):
        chance.choice(ways).log.append(b"check %d" % number)
    for way in ways:
        way.wait_for(
            lambda way=way: len(way.heard.said()) >= entries,  # type: ignore[misc]
            "every process receives every entry",
        )
    first = ways[0].heard.entries
    for way in ways:
        assert way.heard.entries == first, "all processes receive the same entries, at the same times"
        times = [entry.at for entry in way.heard.entries]
        assert times == sorted(times), "the log's time never goes back"
    assert sorted(ways[0].heard.said()) == sorted(b"check %d" % n for n in range(entries)), (
        "an entry is received once, and as it was appended"
    )


def _check_newcomer(make: Callable[[], Log], ways: list[Way]) -> None:
    newcomer = Way(make())
    assert newcomer.heard.entries == ways[0].heard.entries or newcomer.heard.snapshots[-1] is not None, (
        "a newcomer receives all there is, or a snapshot and the rest"
    )
    newcomer.log.stop()


def _check_waking(ways: list[Way]) -> None:
    started = time.monotonic()
    ways[1].log.wait(0.05)
    assert time.monotonic() - started < 2.0, "wait returns after its seconds"
    ways[0].log.append(b"check wake")
    ways[0].log.wake({ways[1].process})
    ways[1].wait_for(
        lambda: b"check wake" in ways[1].heard.said(), "who is woken receives what there is", 2.0
    )


def _check_deaths(ways: list[Way]) -> None:
    for way in ways:
        alive = ways[0].log.is_alive(way.process)
        assert alive is (True if ways[0].log.knows_deaths else None), (
            "is_alive is true for the living where deaths are known, and None elsewhere"
        )


def _check_large(ways: list[Way]) -> None:
    large = b"check" + bytes(range(256)) * 2000
    ways[2].log.append(large)
    ways[0].wait_for(lambda: large in ways[0].heard.said(), "an entry may be half a megabyte of any bytes")
