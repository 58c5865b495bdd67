"""A plain chat is read in one step, to the same workload as every other body."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_admission import RequestInfo, UnreadableBody, Workload
from gpu_admission.bodies.json import read_object
from gpu_admission.workloads.anycase import spellings
from gpu_admission.workloads.openai import OpenAI
from gpu_admission.workloads.plainchat import PlainChat, plain_chat
from gpu_admission.workloads.readings import largest
from tests.cases.harness import http_scope

PATH = "/v1/chat/completions"
HARMLESS = [field.name for field in msgspec.structs.fields(PlainChat)]
OTHERS = (
    *("n", "best_of", "tools", "functions", "prompt", "input", "echo", "size", "background", "min_tokens"),
    *(
        "max_output_tokens",
        "n_predict",
        "documents",
        "previous_response_id",
        "modalities",
        "unknown",
        "Max_Tokens",
        "MESSAGES",
    ),
)
NUMBERS = st.one_of(
    st.integers(-2, 300), st.sampled_from([2**53, 2**53 + 1, 2**63, 2**64, 10**30, 0.5, 7.0, 1e308])
)
VALUES = st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=40), st.just([]), st.just({"a": [1]}))
TEXTS = st.one_of(st.text(max_size=80), VALUES)
MESSAGES = st.lists(
    st.one_of(
        st.fixed_dictionaries({"role": st.sampled_from(["user", "system", "r" * 33]), "content": TEXTS}),
        st.dictionaries(st.sampled_from(["role", "content", "Content", "name", "tool_calls"]), TEXTS),
        VALUES,
    ),
    max_size=4,
)
FIELDS = st.lists(
    st.one_of(
        st.tuples(st.just("messages"), st.one_of(MESSAGES, MESSAGES, VALUES)),
        st.tuples(st.sampled_from(["max_tokens", "max_completion_tokens"]), st.one_of(NUMBERS, VALUES)),
        st.tuples(st.sampled_from([*HARMLESS, *OTHERS]), VALUES),
    ),
    max_size=6,
)


def chat(*fields: tuple[str, Any]) -> bytes:
    """A body of these fields, in this order, repeated names too."""
    members = (msgspec.json.encode(name) + b":" + msgspec.json.encode(value) for name, value in fields)
    return b"{" + b",".join(members) + b"}"


def both(body: bytes) -> tuple[Workload | None, Workload | None]:
    """The workload of ``body`` as it is read, and as it is read step by step; ``None``: unreadable."""
    info, dialect = RequestInfo(http_scope(path=PATH), body), OpenAI()
    found: list[Workload | None] = []

    def step_by_step(info: RequestInfo) -> Workload:
        return largest(spellings(read_object(info)), lambda body: dialect.of(body, PATH))

    for read in (dialect.read, step_by_step):
        try:
            found.append(read(info))
        except UnreadableBody:
            found.append(None)
    return found[0], found[1]


@given(fields=FIELDS)
def test_a_chat_has_the_workload_that_it_has_step_by_step(fields: list[tuple[str, Any]]) -> None:
    usual = [("messages", [{"role": "user", "content": "Hello"}]), ("max_tokens", 20)]
    for body in (chat(*fields), chat(*usual, *fields), chat(*fields, *usual)):
        one, other = both(body)
        assert one == other


@given(at=st.integers(0, 120), written=st.binary(min_size=1, max_size=3))
def test_so_has_one_that_is_not_well_formed(at: int, written: bytes) -> None:
    body = chat(
        ("messages", [{"role": "user", "content": "Hel\\u00e9lo"}]), ("max_tokens", 20), ("stop", ["\u00fc"])
    )
    at = min(at, len(body))
    for cut in (body[:at] + written + body[at:], body[:at] + written + body[at + len(written) :], body[:at]):
        one, other = both(cut)
        assert one == other


@pytest.mark.parametrize("name", OTHERS)
def test_a_field_that_may_cost_something_is_never_skipped(name: str) -> None:
    info = RequestInfo(http_scope(path=PATH), chat(("messages", []), ("max_tokens", 5), (name, None)))
    assert plain_chat(info) is None


def test_the_usual_chat_is_read_in_one_step() -> None:
    fields = [(name, None) for name in HARMLESS if name != "messages"]
    body = chat(("messages", [{"role": "user", "content": "Hello"}]), *fields)
    assert plain_chat(RequestInfo(http_scope(path=PATH), body)) is not None
