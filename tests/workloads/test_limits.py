"""A limit is read as the largest that is said, and lowered without touching anything else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_admission.errors import UnreadableBody
from gpu_admission.workloads.limits import lower_limit, read_limit

NAMES = ("max_tokens", "max_new_tokens")


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({}, (16, True)),
        ({"max_tokens": None}, (16, True)),
        ({"max_tokens": -1}, (16, True)),
        ({"max_tokens": 5}, (5, False)),
        ({"max_tokens": 5, "max_new_tokens": 9}, (9, False)),
        ({"max_tokens": 5, "max_new_tokens": None}, (5, False)),
        ({"max_tokens": 5, "max_new_tokens": 0}, (16, False)),
        ({"max_tokens": "7"}, (7, False)),
    ],
)
def test_the_largest_limit_counts(fields: dict[str, Any], limit: tuple[int, bool]) -> None:
    assert read_limit(fields, NAMES, 16) == limit


@pytest.mark.parametrize(
    ("body", "lowered"),
    [
        (b"{}", b'{"max_tokens": 10}'),
        (b' { "a" : [1, {"max_tokens": 99}] } ', b' {"max_tokens": 10,  "a" : [1, {"max_tokens": 99}] } '),
        (b'{"max_tokens":5,"b":1}', b'{"max_tokens":5,"b":1}'),
        (b'{"max_tokens" : 500,\n"b":1}', b'{"max_tokens" : 10,\n"b":1}'),
        (b'{"max_tokens":null}', b'{"max_tokens":10}'),
        (b'{"max_tokens":-1}', b'{"max_tokens":10}'),
        (b'{"max_tokens":"500"}', b'{"max_tokens":10}'),
        (b'{"max_tokens":[1,{}]}', b'{"max_tokens":10}'),
        (
            b'{"max_tokens":1e9,"max_new_tokens":7,"max_tokens":11}',
            b'{"max_tokens":10,"max_new_tokens":7,"max_tokens":10}',
        ),
        (b'{"max_new_tokens":70}', b'{"max_new_tokens":10}'),
        (b'{"max_\\u0074okens":70}', b'{"max_\\u0074okens":10}'),
        (b'{"a":"\xff\xfe","max_tokens":70}', b'{"a":"\xff\xfe","max_tokens":10}'),
    ],
)
def test_only_the_limit_is_rewritten(body: bytes, lowered: bytes) -> None:
    assert lower_limit(body, NAMES, 10) == lowered


@pytest.mark.parametrize(
    ("body", "lowered"),
    [
        (b"{}", b'{"options": {"max_tokens": 10}}'),
        (b'{"options":{}}', b'{"options":{"max_tokens": 10}}'),
        (b'{"options":null}', b'{"options":{"max_tokens": 10}}'),
        (b'{"options":{"max_tokens":99},"max_tokens":99}', b'{"options":{"max_tokens":10},"max_tokens":99}'),
        (
            b'{"options":5,"options":{"a":1}}',
            b'{"options":{"max_tokens": 10},"options":{"max_tokens": 10, "a":1}}',
        ),
    ],
)
def test_a_limit_inside_a_member_is_rewritten_there(body: bytes, lowered: bytes) -> None:
    assert lower_limit(body, NAMES, 10, places=(("options",),)) == lowered


def test_a_limit_may_stand_deeper_still() -> None:
    assert lower_limit(b"{}", ("c",), 1, places=(("a", "b"),)) == b'{"a": {"b": {"c": 1}}}'
    assert lower_limit(b'{"a":{"b":{"c":9}}}', ("c",), 1, places=(("a", "b"),)) == b'{"a":{"b":{"c":1}}}'


@pytest.mark.parametrize(
    ("body", "lowered"),
    [
        (b'{"max_tokens":99,"options":{}}', b'{"max_tokens":10,"options":{}}'),
        (b'{"options":{"max_tokens":99},"max_tokens":99}', b'{"options":{"max_tokens":10},"max_tokens":10}'),
        (b'{"a":1,"options":5}', b'{"max_tokens": 10, "a":1,"options":5}'),
    ],
)
def test_of_several_places_those_that_have_a_limit_are_lowered(body: bytes, lowered: bytes) -> None:
    assert lower_limit(body, NAMES, 10, places=((), ("options",))) == lowered


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
def test_other_encodings_stay_what_they_are(encoding: str) -> None:
    body = '{"a": "é", "max_tokens": 99}'.encode(encoding)
    assert lower_limit(body, NAMES, 10) == '{"a": "é", "max_tokens": 10}'.encode(encoding)


def test_a_long_image_comes_back_as_it_was() -> None:
    body = json.dumps({"image": "x" * 400_000, "max_tokens": 99, "other": "y" * 400_000}).encode()
    assert lower_limit(body, NAMES, 10) == body.replace(b"99", b"10")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b"7",
        b"{",
        b'{"a"',
        b'{"a":',
        b'{"a" 1}',
        b"{1:2}",
        b'{"a":1',
        b"\xff\xfe{",
        b'{"a":' + b"[" * 9_999,
    ],
)
def test_what_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(UnreadableBody, match=r"not (a )?JSON"):
        lower_limit(body, NAMES, 10)


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["a", "max_tokens", "max_new_tokens"]),
        st.none() | st.integers() | st.text() | st.lists(st.floats()),
    ),
    st.integers(1, 100),
)
def test_after_lowering_no_limit_is_above(fields: dict[str, Any], most: int) -> None:
    lowered = json.loads(lower_limit(json.dumps(fields).encode(), NAMES, most))
    assert read_limit(lowered, NAMES, 10**6)[0] <= most
    assert repr(lowered.get("a")) == repr(fields.get("a"))
    assert lower_limit(json.dumps(lowered).encode(), NAMES, most) == json.dumps(lowered).encode()
