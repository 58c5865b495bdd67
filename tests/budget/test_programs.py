"""Random programs against the ledger: DESIGN §5 holds after every step of each."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from gpu_admission.budget.lanes import Lane
from gpu_admission.budget.ledger import Ledger
from gpu_admission.budget.placement import POLICIES
from tests.budget.audit import Audit

STEPS = 300
PROGRAMS = 120

_rules = st.fixed_dictionaries(
    {
        "max_bypass": st.sampled_from([0, 1, 3, 32]),
        "max_bypass_wait": st.sampled_from([0.0, 4.0, 30.0, 1e9]),
        "max_waiting": st.sampled_from([0, 1, 4, 12]),
        "max_running": st.sampled_from([None, None, 1, 3]),
    }
)


@st.composite
def _lanes(draw: st.DrawFn) -> list[Lane]:
    """Two to four lanes whose guarantees add up to at most the whole."""
    count = draw(st.integers(2, 4))
    left, lanes = 10, []
    for index in range(count):
        guaranteed = draw(st.integers(0, left))
        left -= guaranteed
        lanes.append(
            Lane(
                f"lane{index}",
                guaranteed=guaranteed / 10,
                limit=draw(st.integers(max(1, guaranteed), 10)) / 10,
                priority=draw(st.integers(-1, 1)),
                max_waiting=draw(st.sampled_from([None, 0, 3])),
            )
        )
    return lanes


_several = st.fixed_dictionaries(
    {
        "capacities": st.lists(st.integers(50, 120), min_size=2, max_size=3),
        "placement": st.sampled_from(sorted(POLICIES.items())).map(lambda item: item[1]),
    }
)
_one = st.just({"capacities": [100]})
_no_lanes: st.SearchStrategy[dict[str, Any]] = st.just({})
_with_lanes = _lanes().map(lambda lanes: {"lanes": lanes})
_with_flows = st.sampled_from([1, 2, 5, 12])
_per_flow = st.sampled_from([{}, {"max_waiting_per_flow": 2}])

FAMILIES = {
    "one lane": (_one, _no_lanes, st.just(0)),
    "lanes": (_one, _with_lanes, st.just(0)),
    "flows": (_one, _no_lanes, _with_flows),
    "lanes with flows": (_one, _with_lanes, _with_flows),
    "devices": (_several, _no_lanes, st.just(0)),
    "devices, lanes and flows": (_several, _with_lanes, _with_flows),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_invariant_holds_after_every_step_of_a_random_program(family: str) -> None:
    devices, lanes, flows = FAMILIES[family]

    @settings(
        max_examples=PROGRAMS,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=[
            HealthCheck.too_slow,
            HealthCheck.large_base_example,
            HealthCheck.data_too_large,
        ],
    )
    @given(devices, lanes, flows, _rules, _per_flow, st.binary(min_size=3 * STEPS, max_size=3 * STEPS))
    def programs(
        devices: dict[str, Any],
        lanes: dict[str, Any],
        flows: int,
        rules: dict[str, Any],
        per_flow: dict[str, int],
        program: bytes,
    ) -> None:
        capacities = devices["capacities"]
        options = {**lanes, **rules, **per_flow, **devices}
        del options["capacities"]
        run(program, Audit(Ledger(capacities, **options)), flows)

    programs()


def run(program: bytes, audit: Audit, flows: int) -> None:
    """Three bytes a step: what to do, to whom, how much. Zeros only let the ledger look again."""
    bytes_ = iter(program)
    steps = list(zip(bytes_, bytes_, bytes_, strict=True))
    note(f"steps: {[step for step in steps if any(step)]}")
    for what, who, size in steps:
        take(audit, what, who, size, flows)
    audit.close()


def take(audit: Audit, what: int, who: int, size: int, flows: int) -> None:
    """One step, weighted so that the line is often long and often empty."""
    ledger = audit.ledger
    match what % 16:
        case 1 | 2 | 3 | 4 | 5:
            lane = who % len(ledger.lanes)
            flow = who // 8 % flows if flows else None
            wanted = 1 + size % (ledger.largest(lane) if size % 4 == 0 else 30)
            if wanted <= ledger.largest(lane):
                audit.request(wanted, lane, flow)
        case 6 | 7 | 8 if audit.held:
            audit.release(audit.held[who % len(audit.held)])
        case 9 if audit.waiting:
            audit.release(audit.waiting[who % len(audit.waiting)])
        case 10 if audit.waiting and who % 2:
            audit.change(audit.waiting[who // 2 % len(audit.waiting)], 1 + size % 60)
        case 10 if audit.held:
            audit.change(audit.held[who % len(audit.held)], size % 40)
        case 11:
            audit.tick(size / 16)
        case 12:
            most = who // 8 % 4 if who % 4 == 3 else None
            audit.allow(who % len(ledger.accounts), None if size % 3 == 0 else size % 110, most)
        case 13 if size % 4 == 0:
            audit.resize([60 + who * k % 60 for k in range(1, len(ledger.accounts) + 1)])
        case 14 if size % 4 == 0:
            audit.run_at_most(None if who % 3 == 0 else 1 + who % 6)
        case 15 if size == 255:
            audit.refuse_all()
        case 15 if audit.over:
            audit.release(audit.over[who % len(audit.over)])
        case 0 if who >= 250 and size % 2:
            audit.tick(-size)
        case _:
            audit.tick(0.0)
