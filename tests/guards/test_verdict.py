"""Several guards' words as one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpu_admission.guards.verdict import Verdict, is_news, together

VERDICTS = st.builds(
    Verdict,
    ceiling=st.none() | st.integers(0, 100),
    guard=st.sampled_from("abc"),
    reason=st.sampled_from(["", "hot"]),
    restart_only=st.booleans(),
    trials=st.none() | st.integers(1, 3),
    clamp=st.none() | st.floats(0.1, 1),
)


@given(st.lists(VERDICTS, max_size=5))
def test_nothing_that_is_said_is_lost(verdicts: list[Verdict]) -> None:
    """Whoever speaks, the fewest trials and the smallest factor hold; a restart comes before all."""
    whole = together(verdicts)
    assert whole.trials == min((v.trials for v in verdicts if v.trials is not None), default=None)
    assert whole.clamp == min((v.clamp for v in verdicts if v.clamp is not None), default=None)
    broken = [v for v in verdicts if v.restart_only]
    assert whole.restart_only == bool(broken)
    ceilings = [v.ceiling for v in broken or verdicts if v.ceiling is not None]
    assert whole.ceiling == min(ceilings, default=None)


def test_nobody_says_nothing() -> None:
    assert together([]) == together([Verdict(), Verdict()]) == Verdict()


def test_a_reason_without_a_ceiling_is_told_where_nobody_limits() -> None:
    """As of a device that is served blindly."""
    blind = Verdict(reason="no memory reading for 12 s: serving on the capacity alone")
    assert together([Verdict(), blind, Verdict()]).reason == blind.reason
    assert together([blind, Verdict(50, "heat", "hot")]).reason == "hot"


def test_news_is_what_opens_closes_or_moves_by_a_tenth() -> None:
    limited = Verdict(80, "memory", "others")
    assert not is_news(Verdict(75, "memory", "others"), limited, 100)
    assert is_news(Verdict(65, "memory", "others"), limited, 100)
    assert not is_news(Verdict(95, "memory", "others"), Verdict(), 100)
    assert is_news(Verdict(), limited, 100)
    assert is_news(Verdict(0, "heat", "hot"), Verdict(5, "heat", "hot"), 100)
    assert is_news(Verdict(80, "memory", "others", clamp=0.5), limited, 100)
    assert is_news(Verdict(reason="blind"), Verdict(), 100)
    assert not is_news(Verdict(reason="blind for longer"), Verdict(reason="blind"), 100)
