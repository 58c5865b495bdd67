"""What processes say to each other: data of known shapes and bounded sizes, and nothing else counts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_admission.shared.dump import dump, load
from gpu_admission.shared.operations import (
    MOST_BYTES,
    MOST_OPERATIONS,
    MOST_TOLD,
    RULES,
    Adopt,
    Allow,
    Ask,
    Beat,
    Change,
    End,
    Gone,
    Held,
    Join,
    Message,
    Open,
    Resize,
    Terms,
    decode,
    encode,
    encode_short,
    flow_key,
    rules_of,
)
from gpu_admission.shared.replica import Replica
from gpu_admission.shared.views import view_members

TERMS = Terms((100,))


def joined() -> Replica:
    replica = Replica()
    replica.apply(1.0, encode("", 0, Open(0.0, expires=True)))
    replica.apply(1.0, encode("a.1", 1, Join(1, "host", TERMS)))
    return replica


def state(replica: Replica) -> bytes:
    return dump(replica)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_message_change_nothing(data: bytes) -> None:
    replica = joined()
    before = state(replica)
    if decode(data) is None:
        replica.apply(1.0, data)
        assert state(replica) == before


@pytest.mark.parametrize(
    "operation",
    [
        Ask(1, 10, 99),
        End(77),
        Change(77, 5),
        Allow(9, ceiling=1),
        Resize((1, 2)),
        Gone("stranger", certain=True),
        Join(1, "host", TERMS),
        Open(1.0, expires=True),
    ],
)
def test_what_makes_no_sense_harms_nobody(operation: object) -> None:
    replica = joined()
    replica.apply(1.0, encode("a.1", 2, operation))  # type: ignore[arg-type]
    assert replica.ledger is not None
    assert replica.ledger.in_use in (0, 10)
    assert "a.1" in replica.members.living


def test_an_ask_or_a_claim_of_a_number_that_is_known_counts_once() -> None:
    replica = joined()
    held = Held(1, 10, 0, 0, None, 0.0)
    replica.apply(1.0, encode("a.1", 2, Ask(1, 10), Ask(1, 10), Adopt((held,))))
    assert replica.ledger is not None
    assert replica.ledger.in_use == 10


def test_a_stranger_and_other_rules_are_not_heard() -> None:
    replica = joined()
    before = state(replica)
    replica.apply(1.0, encode("b.1", 5, Ask(1, 10), Beat()))
    replica.apply(1.0, msgspec.msgpack.encode((RULES + 1, "a.1", 2, [])))
    assert replica.other_rules == RULES + 1
    assert state(replica) == before
    assert rules_of(encode("a.1", 1)) == RULES
    assert rules_of(b"\xc1") is None
    assert rules_of(b"\x01") is None


def test_an_entry_has_a_bounded_size() -> None:
    with pytest.raises(ValueError, match="an entry takes at most"):
        encode("a.1", 1, *[End(1)] * (MOST_OPERATIONS + 1))
    with pytest.raises(ValueError, match=f"and {MOST_BYTES} bytes"):
        encode("a.1", 1, *[Beat(told=bytes(MOST_TOLD))] * (MOST_BYTES // MOST_TOLD))


@pytest.mark.parametrize(
    "operation",
    [
        Beat(told=bytes(MOST_TOLD + 1)),
        Ask(1, 1, 0, bytes(33)),
        Ask(1, 1 << 62),
        Join(1, "h" * 129, Terms((1,))),
        Open(0.0, expires=False, why="x" * 513),
    ],
)
def test_what_is_larger_than_anybody_says_is_not_heard(operation: Any) -> None:
    assert decode(encode("a.1", 1, operation)) is None


def test_what_is_no_snapshot_is_refused() -> None:
    with pytest.raises(ValueError, match="can't be read"):
        load(Replica(), b"\xc1")


def test_an_empty_replica_can_be_written_down() -> None:
    again = Replica()
    load(again, dump(Replica()))
    assert again.ledger is None
    assert again.at == float("-inf")


def test_one_that_leaves_in_the_middle_of_an_entry_says_no_more() -> None:
    replica = joined()
    replica.apply(1.0, encode("a.1", 2, Gone("a.1", certain=True), Ask(1, 10)))
    assert replica.ledger is not None
    assert replica.ledger.in_use == 0


def test_a_snapshot_of_other_rules_is_not_taken_but_named() -> None:
    said = msgspec.msgpack.decode(dump(joined()))
    said[0] = RULES + 1
    again = Replica()
    load(again, msgspec.msgpack.encode(said))
    assert again.other_rules == RULES + 1
    assert again.ledger is None


def test_a_ticket_without_a_flow_has_no_key() -> None:
    assert flow_key(None) is None


def test_a_short_entry_says_what_a_long_one_would() -> None:
    assert decode(encode_short(b"a.1", 7, 3, 4, 50, 2)) == Message(RULES, "a.1", 7, (End(3), Ask(4, 50, 2)))
    assert decode(encode_short(b"a.1", 7, 3, 0, 0, 0)) == Message(RULES, "a.1", 7, (End(3),))
    assert decode(encode_short(b"a.1", 7, 0, 4, 50, 0)) == Message(RULES, "a.1", 7, (Ask(4, 50),))


def test_a_short_entry_of_other_rules_is_not_heard_but_named() -> None:
    replica = joined()
    said = bytearray(encode_short(b"a.1", 2, 0, 1, 10, 0))
    said[1] = RULES + 1
    replica.apply(1.0, bytes(said))
    assert replica.other_rules == RULES + 1
    assert replica.ledger is not None
    assert replica.ledger.in_use == 0
    assert rules_of(bytes(said[:5])) is None


def test_a_message_of_these_rules_that_makes_no_sense_is_not_taken_for_one_of_others() -> None:
    replica = Replica()
    replica.apply(1.0, msgspec.msgpack.encode([RULES, "x"]))
    assert replica.other_rules is None
    replica.apply(2.0, msgspec.msgpack.encode([RULES + 1, "x"]))
    assert replica.other_rules == RULES + 1


def test_a_member_is_shown_as_its_own_process_host_and_age() -> None:
    """To whoever looks, from wherever."""
    replica = joined()
    replica.apply(5.0, encode("b.1", 1, Join(4711, "far", TERMS)))
    first, second = view_members(replica, "a.1", 25.0)
    assert (first.name, first.pid, first.host, first.age, first.is_self) == ("a.1", 1, "host", 24.0, True)
    assert (second.name, second.pid, second.host, second.age) == ("b.1", 4711, "far", 20.0)
    assert not second.is_self
