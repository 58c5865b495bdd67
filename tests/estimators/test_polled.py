"""A meter that polls, with a clock and readings that are set by hand."""

from __future__ import annotations

import pytest

from gpu_admission.estimators.polled import Polled


class Process:
    """Bytes in use, read from outside; the meter's own thread sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.used, self.now = 1000, 0.0
        monkeypatch.setattr("gpu_admission.estimators.polled.time.monotonic", lambda: self.now)
        self.meter = Polled(lambda: self.used, every=3600)

    def lives(self, *steps: int) -> None:
        """One second with each of ``steps`` bytes beside what was in use."""
        for more in steps:
            self.used = 1000 + more
            self.meter.look()
            self.now += 1


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    return Process(monkeypatch)


def test_the_most_that_was_seen_is_the_peak(process: Process) -> None:
    assert process.meter.start() == 1000
    process.lives(500, 900, 200)
    assert process.meter.peak() == 1900
    process.used = 1000
    assert process.meter.start() == 1000
    process.lives(100)
    assert process.meter.peak() == 1100


@pytest.mark.parametrize(
    ("steps", "grows"),
    [
        ((900, 500, 500, 500, 500, 500), False),
        ((900, 910, 915, 920, 925, 930), False),
        ((500, 900, 900, 900, 900, 900), False),
        ((100, 200, 300, 400, 500, 600), True),
        ((500, 500, 500, 500, 500, 900), True),
        ((0, 0, 0, 0, 0, 0), False),
    ],
)
def test_whether_the_peak_came_late_tells_what_grows(
    process: Process, steps: tuple[int, ...], grows: bool
) -> None:
    process.meter.start()
    process.lives(*steps)
    process.meter.peak()
    assert process.meter.grows is grows


def test_however_long_it_grows_little_is_remembered(process: Process) -> None:
    process.meter.start()
    process.lives(*range(1, 20_000))
    assert process.meter.peak() == 1000 + 19_999
    assert process.meter.grows
    assert process.meter.remembered <= 1000
