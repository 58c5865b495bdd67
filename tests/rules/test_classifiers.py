"""Which lane the ready pickers choose."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpu_admission import Admission, Lane, RequestInfo
from gpu_admission.errors import UnreadableBody
from gpu_admission.rules.classifiers import by_path, by_tokens, tokens
from gpu_admission.types import Workload


class Asking:
    """A dialect that says one workload."""

    def __init__(self, **fields: Any) -> None:
        self.workload = Workload(**fields)

    def read(self, info: RequestInfo) -> Workload:
        return self.workload


def asking(path: str = "/", **fields: Any) -> RequestInfo:
    return RequestInfo(
        {"type": "http", "method": "POST", "path": path, "headers": []}, dialect=Asking(**fields)
    )


@pytest.mark.parametrize(("asked", "lane"), [(1, "short"), (512, "short"), (513, "long")])
def test_up_to_the_limit_is_short(asked: int, lane: str) -> None:
    assert by_tokens(short=512)(asking(prompt_tokens=asked)) == lane


def test_there_may_be_more_than_two() -> None:
    pick = by_tokens(medium=100, short=10, rest="huge")
    assert [pick(asking(prompt_tokens=asked)) for asked in (10, 11, 100, 101)] == [
        "short",
        "medium",
        "medium",
        "huge",
    ]


def test_all_prompts_and_all_new_tokens_of_every_sequence_count() -> None:
    assert tokens(asking(prompt_tokens=5, new_tokens=10)) == 15
    assert tokens(asking(prompt_tokens=5, total_prompt_tokens=20, new_tokens=10, sequences=4)) == 60


def test_a_real_body_is_read() -> None:
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}
    body = json.dumps({"model": "m", "prompt": "hello", "max_tokens": 4000}).encode()
    assert by_tokens(short=512)(RequestInfo(scope, body)) == "long"
    with pytest.raises(UnreadableBody):
        by_tokens(short=512)(RequestInfo(scope, b"{"))


@pytest.mark.parametrize(
    ("arguments", "kind", "sentence"),
    [
        ({}, TypeError, "at least one limit"),
        ({"rest": "long"}, TypeError, "at least one limit"),
        ({"short": 1.5}, TypeError, "short must be an int"),
        ({"short": True}, TypeError, "short must be an int"),
        ({"short": 0}, ValueError, "1 or more"),
        ({"long": 5}, ValueError, "rest='long' is one of the limits"),
    ],
)
def test_limits_that_are_no_counts_are_refused(
    arguments: dict[str, Any], kind: type[Exception], sentence: str
) -> None:
    with pytest.raises(kind, match=sentence):
        by_tokens(**arguments)


def test_the_first_pattern_that_matches_names_the_lane() -> None:
    pick = by_path({"/v1/embeddings": "quick", "/batch/**": "slow", "/v1/*": "chat"})
    paths = ["/v1/embeddings", "/v1/completions", "/batch/a/b", "/other"]
    assert [pick(asking(path)) for path in paths] == ["quick", "chat", "slow", None]


@pytest.mark.parametrize(
    ("lanes", "kind", "sentence"),
    [
        ({}, TypeError, "dict of path patterns"),
        (["/a"], TypeError, "dict of path patterns"),
        ({"/a": 1}, TypeError, "the lane of '/a' must be a name"),
        ({"/a": ""}, TypeError, "the lane of '/a' must be a name"),
        ({"a": "x"}, ValueError, "by_path: the path pattern"),
    ],
)
def test_what_is_no_pattern_or_no_name_is_refused(lanes: Any, kind: type[Exception], sentence: str) -> None:
    with pytest.raises(kind, match=sentence):
        by_path(lanes)


def test_they_are_settings_of_an_admission() -> None:
    lanes = (Lane("short", guaranteed=0.3), Lane("long"))
    assert Admission(capacity=100, estimator=1, lanes=lanes, lane=by_tokens(short=512)).picks_lanes
