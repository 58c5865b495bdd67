"""Failures that users of other programs reported, as far as they concern reading a body.

The names carry the ids of the list that they are on.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpu_admission.bodies.numbers import CEILING
from gpu_admission.errors import UnreadableBody
from gpu_admission.workloads import OpenAI, dialect_for
from tests.workloads.asking import request

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]
ODD: list[Any] = [
    None,
    -1,
    0,
    2147483647,
    10**18,
    1e18,
    1.5,
    "100",
    True,
    [5],
    {},
    float("nan"),
    float("inf"),
]


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 20_000 + b"]" * 20_000,
        b'{"a":' * 5_000,
        b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
        b'{"prompt":"\x80"}',
        '{"prompt":"x"}'.encode("utf-16"),
        b'\xef\xbb\xbf{"prompt":"x"}',
        b'{"prompt":"\\ud800"}',
        b'{"messages":[{"role":"user","content":"\\udfff"}]}',
        b"null", b"[]", b'"x"', b"7", b"",
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "path", [CHAT, "/v1/completions", "/v1/embeddings", "/generate", "/api/chat", "/anything"]
)
def test_bl25_odd_bodies_are_read_or_refused_and_never_fail(body: bytes, path: str) -> None:
    try:
        workload = dialect_for(path).read(request(body, path))
    except UnreadableBody:
        return
    assert workload.prompt_tokens >= 1


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/generate"])
def test_bl25_a_wrong_content_type_changes_nothing(path: str) -> None:
    body = json.dumps({"prompt": "x", "messages": HELLO, "max_tokens": 5}).encode()
    workloads = {
        repr(dialect_for(path).read(request(body, path, kind=kind)))
        for kind in ("text/plain", "", "application/json")
    }
    assert len(workloads) == 1


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize("field", ["max_tokens", "n", "max_completion_tokens", "best_of"])
def test_bl26_odd_numbers_are_finite_and_positive_or_refused(field: str, value: Any) -> None:
    try:
        workload = OpenAI().read(request({"messages": HELLO, field: value}))
    except UnreadableBody as error:
        assert isinstance(value, (bool, list, dict))
        assert field in error.detail  # noqa: PT017
        return
    assert 1 <= workload.new_tokens <= CEILING
    assert 1 <= workload.sequences <= CEILING


@pytest.mark.parametrize("value", [None, -1, 0, float("nan")])
def test_bl26_no_limit_means_the_default_never_nothing(value: Any) -> None:
    workload = OpenAI(default_new_tokens=777).read(request({"messages": HELLO, "max_tokens": value}))
    assert (workload.new_tokens, workload.defaulted) == (777, ("max_tokens",))


@pytest.mark.parametrize("value", [2147483647, 10**18, 1e18, float("inf"), "9" * 30])
def test_bl26_a_huge_limit_is_asked_for_in_full(value: Any) -> None:
    assert OpenAI().read(request({"messages": HELLO, "max_tokens": value})).new_tokens >= 2147483647


def test_bl26_ten_thousand_prompts_are_ten_thousand_rows() -> None:
    workload = OpenAI().read(request({"prompt": ["x"] * 10_000}, "/v1/completions"))
    assert workload.sequences == 10_000
    assert workload.total_prompt_tokens >= 10_000


@pytest.mark.parametrize("size", ["0x0", "-1x5", "99999999999x99999999999", "x", 5, None, True, [5], {}])
def test_bl26_odd_image_sizes_are_finite_or_refused(size: Any) -> None:
    path = "/v1/images/generations"
    try:
        workload = dialect_for(path).read(request({"prompt": "x", "size": size}, path))
    except UnreadableBody:
        return
    assert workload.width * workload.height > 0


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize("field", ["width", "height", "batch_size", "hr_scale", "hr_resize_x"])
def test_bl26_odd_picture_sizes_are_finite_or_refused(field: str, value: Any) -> None:
    path = "/sdapi/v1/txt2img"
    try:
        workload = dialect_for(path).read(request({"prompt": "x", "enable_hr": True, field: value}, path))
    except UnreadableBody as error:
        assert field in error.detail  # noqa: PT017
        return
    assert 0 < workload.width * workload.height * workload.sequences <= CEILING**3
