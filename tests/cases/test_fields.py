"""Odd bodies and hostile fields: BL-25, BL-26."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpu_admission import Estimate
from tests.cases.harness import scenario
from tests.cases.sizing import asked_tokens

pytestmark = pytest.mark.anyio


# BL-25: odd but small bodies

ODD: dict[str, bytes] = {
    "deep list": b"[" * 20_000 + b"]" * 20_000,
    "deep object": b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
    "deep prompt": b'{"prompt":' + b"[" * 20_000 + b"]" * 20_000 + b"}",
    "deep messages": b'{"messages":' + b'[{"content":' * 3_000 + b"1" + b"}]" * 3_000 + b"}",
    "not utf-8": b'{"prompt":"\x80"}',
    "utf-16": '{"prompt": "hi"}'.encode("utf-16"),
    "utf-32": '{"prompt": "hi"}'.encode("utf-32"),
    "bom": b'\xef\xbb\xbf{"prompt": "hi"}',
    "lone surrogate": b'{"prompt": "\\ud800"}',
    "lone surrogate key": b'{"\\udfff": 1, "prompt": "x"}',
    "null": b"null",
    "list": b"[]",
    "text": b'"x"',
    "number": b"7",
    "long number": b'{"max_tokens": ' + b"9" * 5_000 + b"}",
    "infinity": b'{"max_tokens": Infinity}',
    "nan": b'{"max_tokens": NaN}',
    "1e400": b'{"max_tokens": 1e400}',
    "duplicate keys": b'{"max_tokens": 1, "max_tokens": 2, "prompt": "x"}',
    "empty": b"",
    "spaces": b"   ",
    "nul bytes": b"\0\0\0\0",
    "cut short": b'{"prompt": "hi',
    "no json": b"prompt=hi",
}


@pytest.mark.parametrize("content_type", [b"application/json", b"text/plain", b"image/png"])
@pytest.mark.parametrize("name", ODD)
async def test_bl_25_an_odd_body_is_refused_with_a_reason_or_charged_never_a_500(
    name: str, content_type: bytes
) -> None:
    headers = [(b"content-type", content_type)]
    path = "/v1/chat/completions"
    async with scenario(estimator=asked_tokens, capacity=10**6) as scene:
        call = await scene.run(ODD[name], headers=headers, path=path)
        assert call.error is None
        if call.reached_app:
            assert call.lease is not None
            assert 1 <= call.lease.bytes <= 10**6
        else:
            assert call.problem()["reason"] in ("unreadable_body", "too_large")
    async with scenario(estimator=asked_tokens, capacity=10**6, fallback=777) as scene:
        call = await scene.run(ODD[name], headers=headers, path=path)
        assert call.error is None
        assert call.reached_app or call.problem()["reason"] == "too_large"


@pytest.mark.parametrize("name", ODD)
async def test_bl_25_an_estimator_that_reads_json_itself_meets_the_same_answers(name: str) -> None:
    """``info.json`` raises what is answered with 400; any other failure costs the whole capacity."""
    async with scenario(estimator=lambda info: len(info.json["prompt"])) as scene:
        call = await scene.run(ODD[name])
        assert call.error is None
        if name == "empty":
            assert (call.status, call.lease) == (200, None), "it asks for nothing"
        elif not call.reached_app:
            assert call.problem()["reason"] in ("unreadable_body", "too_large")


# BL-26: token limits of every kind

DEFAULT = 1024  # new tokens of a chat request that names no limit
LIMITS: list[tuple[Any, int | str]] = [
    (None, DEFAULT),
    (-1, DEFAULT),
    (0, DEFAULT),
    (-(10**18), DEFAULT),
    (1, 1),
    (1.5, 2),
    ("100", 100),
    (2_147_483_647, "too_large"),
    (10**18, "too_large"),
    (1e18, "too_large"),
    (10**400, "too_large"),
    (True, "unreadable_body"),
    (False, "unreadable_body"),
    ([5], "unreadable_body"),
    ({}, "unreadable_body"),
    ("many", "unreadable_body"),
]


def chat(**fields: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": "hi"}], **fields}).encode()


@pytest.mark.parametrize(("value", "expected"), LIMITS, ids=lambda value: str(value)[:12])
@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
async def test_bl_26_a_token_limit_of_any_kind_gives_a_finite_charge_or_a_refusal(
    field: str, value: Any, expected: int | str
) -> None:
    async with scenario(estimator=asked_tokens, capacity=10**6) as scene:
        call = await scene.run(chat(**{field: value}), path="/v1/chat/completions")
        if isinstance(expected, str):
            assert call.problem()["reason"] == expected
        else:
            assert call.lease is not None
            assert expected < call.lease.bytes < expected + 100


@pytest.mark.parametrize("field", ["max_tokens", "n", "best_of"])
@pytest.mark.parametrize("value", [True, [5], {}, "many", float("nan"), float("inf"), -1, 0, 1e300, 10**400])
async def test_bl_26_a_wrong_number_never_lowers_the_charge_nor_fails(field: str, value: Any) -> None:
    async with scenario(estimator=asked_tokens, capacity=10**6, fallback=5000) as scene:
        plain = await scene.run(chat(), path="/v1/chat/completions")
        call = await scene.run(chat(**{field: value}), path="/v1/chat/completions")
        assert call.error is None
        assert plain.lease is not None
        if call.lease is None:
            assert call.problem()["reason"] == "too_large"
        else:
            assert call.lease.bytes >= plain.lease.bytes


async def test_bl_26_no_limit_at_all_means_the_default() -> None:
    async with scenario(estimator=asked_tokens, capacity=10**6) as scene:
        call = await scene.run(chat(), path="/v1/chat/completions")
        assert call.lease is not None
        assert DEFAULT < call.lease.bytes < DEFAULT + 100


async def test_bl_26_a_list_of_prompts_is_charged_for_each() -> None:
    body = json.dumps({"prompt": ["x"] * 10_000, "max_tokens": 5}).encode()
    async with scenario(estimator=asked_tokens, capacity=10**6) as scene:
        call = await scene.run(body, path="/v1/completions")
        assert call.lease is not None
        assert call.lease.bytes >= 50_000


@pytest.mark.parametrize(
    ("result", "charged"),
    [
        (1, 1),
        (0, 1),
        (0.2, 1),
        (50.1, 51),
        (Estimate(50), 50),
        (Estimate(0), 1),
        (Estimate(49.5), 50),  # type: ignore[arg-type]
        (-1, 100),
        (float("nan"), 100),
        (float("inf"), 100),
        (None, 100),
        ("60", 100),
        (True, 100),
        (Estimate(-5), 100),
    ],
    ids=repr,
)
async def test_bl_26_whatever_an_estimator_returns_the_charge_is_a_whole_number_of_bytes(
    result: Any, charged: int
) -> None:
    """What is no size is a failed estimator: it is charged the whole capacity."""
    async with scenario(estimator=lambda info: result) as scene:
        call = await scene.run()
        assert call.lease is not None
        assert call.lease.bytes == charged
        assert type(call.lease.bytes) is int


@pytest.mark.parametrize("result", [101, 2**63, 10**400, 1e300, Estimate(10**30)], ids=lambda r: str(r)[:12])
async def test_bl_26_an_estimate_above_the_total_is_refused(result: Any) -> None:
    async with scenario(estimator=lambda info: result) as scene:
        call = await scene.run()
        problem = call.problem()
        assert (call.status, problem["reason"]) == (413, "too_large")
        assert problem["needed_bytes"] > problem["capacity_bytes"] == 100


async def test_bl_26_numbers_of_numpy_are_sizes() -> None:
    numpy = pytest.importorskip("numpy")
    for number in (numpy.int64(7), numpy.float32(6.5), Estimate(numpy.int32(7))):
        async with scenario(estimator=lambda info, number=number: number) as scene:
            call = await scene.run()
            assert call.lease is not None
            assert (call.lease.bytes, type(call.lease.bytes)) == (7, int)
