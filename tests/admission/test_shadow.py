"""The summary of shadow mode."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from gpu_admission import Admission, Estimate
from gpu_admission.admission.shadow import would_have
from gpu_admission.observe import ShadowSummary
from tests.observe.events import event


class Timer:
    """A timer that waits until the test says that its time has come."""

    def __init__(self, seconds: float, then: Callable[[], None]) -> None:
        self.seconds = seconds
        self.then = then
        self.daemon = False
        self.started = False

    def start(self) -> None:
        self.started = True


@pytest.fixture
def timers() -> list[Timer]:
    return []


@pytest.fixture
def summary(timers: list[Timer]) -> ShadowSummary:
    def make(seconds: float, then: Callable[[], None]) -> Timer:
        timers.append(Timer(seconds, then))
        return timers[-1]

    return ShadowSummary(timer=make)


@pytest.mark.anyio
async def test_a_minute_with_requests_is_summed_up_in_one_line(
    summary: ShadowSummary, timers: list[Timer], caplog: pytest.LogCaptureFixture
) -> None:
    admission = Admission(capacity="20GiB", estimator=1, mode="shadow", max_waiting=0, observers=[summary])
    leases = [await admission.entrance.acquire(Estimate(7 * 2**30)) for _ in range(3)]
    for lease in leases:
        lease.release()
    (timer,) = timers
    assert (timer.seconds, timer.daemon, timer.started) == (60.0, True, True)
    with caplog.at_level(logging.INFO, "gpu_admission"):
        timer.then()
    assert caplog.messages[-1] == (
        "shadow mode of 'default': would have refused 1 of 3 (queue_full 1), delayed 0; "
        "peak 21.00 GiB of 20.00 GiB"
    )


def test_the_next_request_starts_the_next_minute(
    summary: ShadowSummary, timers: list[Timer], caplog: pytest.LogCaptureFixture
) -> None:
    Admission(capacity=100, estimator=1, mode="shadow", observers=[summary])
    with caplog.at_level(logging.INFO, "gpu_admission"):
        summary(event("shadow"))
        summary(event("released"))
        timers[0].then()
        summary(event("shadow", reason="waited"))
        timers[1].then()
        summary.say()
    assert [line.split(": ")[1].split(";")[0] for line in caplog.messages] == [
        "would have refused 0 of 1, delayed 0",
        "would have refused 0 of 1, delayed 1",
    ]


def test_shadow_mode_brings_its_summary_along_and_other_modes_do_not() -> None:
    def own(**settings: Any) -> list[type]:
        return [type(each) for each in Admission(capacity=100, estimator=1, **settings).observers]

    assert own(mode="shadow") == [ShadowSummary]
    assert own() == []


def test_the_words_count_what_would_be_refused_and_what_delayed() -> None:
    counts = Counter({"": 198, "waited": 30, "queue_timeout": 10, "too_large": 2})
    assert would_have(counts) == "would have refused 12 of 240 (queue_timeout 10, too_large 2), delayed 30"
