"""The protocol, searched through all states of small bounds; and what it must never be changed to."""

from __future__ import annotations

import pytest

from tests.shared.model import FLAWS, alike, search


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "faults"), [(3, 2), (2, 3)])
def test_no_state_is_wrong(processes: int, faults: int) -> None:
    states, wrong = search(processes=processes, faults=faults)
    assert wrong == ""
    assert len(states) > 100_000


def test_no_state_of_the_smallest_bounds_is_wrong() -> None:
    every, wrong = search(processes=2, faults=1, as_one=None)
    assert wrong == ""
    assert search(processes=2, faults=1)[0] == {alike(state) for state in every}, "and the short ones are all"


FOUND = {
    "client clocks": "which runs and is well, are given away",
    "reaper outside the log": "given away|more runs",
    "renewal not re-checked": "more runs than the capacity allows",
    "missing = empty": "more runs than the capacity allows",
    "late end subtracts": "more runs than the capacity allows",
    "no quarantine": "which runs and is well, are given away",
    "old grant": "more runs than the capacity allows",
    "old bytes handed on": "more runs than the capacity allows",
    "failover trusted": "more runs than the capacity allows",
    "wake-up only": "waits for ever",
}


@pytest.mark.parametrize("flaw", FLAWS)
def test_a_planted_flaw_is_found(flaw: str) -> None:
    import re

    wrong = search(flaw, processes=2, as_one=None)[1]
    assert re.search(FOUND[flaw], wrong), f"{flaw} ({FLAWS[flaw]}): found {wrong!r}"
