"""A body of no known API is read high."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_admission.errors import UnreadableBody
from gpu_admission.types import Workload
from gpu_admission.workloads import Guess
from tests.workloads import pictures
from tests.workloads.asking import request, upload


def guess(body: Any, **more: Any) -> Workload:
    return Guess().read(request(body, "/run", **more))


def test_all_of_an_unknown_body_is_prompt() -> None:
    workload = guess({"question": "x" * 100, "extra": {"deep": ["x" * 100]}})
    assert workload.prompt_tokens >= 82
    assert (workload.new_tokens, workload.defaulted) == (1024, ("max_tokens",))
    assert guess({}).prompt_tokens == 1


@pytest.mark.parametrize(
    ("body", "task", "sequences"),
    [
        ({"messages": [{"content": "x"}]}, "generate", 1),
        ({"prompt": ["x", "y"]}, "generate", 2),
        ({"input": "x"}, "generate", 1),
        ({"inputs": "x", "parameters": {"best_of": 2}}, "generate", 2),
        ({"query": "x", "documents": ["y", "z"]}, "rerank", 2),
        ({"query": "x", "texts": ["y", "z"]}, "rerank", 2),
        ({"inputs": [{"name": "x", "shape": [4], "datatype": "FP32"}]}, "infer", 1),
        ({"text_input": "x"}, "generate", 1),
    ],
)
def test_a_known_kind_is_recognised_by_its_fields(body: Any, task: str, sequences: int) -> None:
    workload = guess(body)
    assert (workload.task, workload.sequences) == (task, sequences)


@pytest.mark.parametrize(
    "body", [{"prompt": "x"}, {"inputs": "x"}, {"messages": [{"content": "x"}]}, {"prompt": ["x", "y"]}]
)
def test_what_a_known_kind_does_not_have_is_charged_too(body: dict[str, Any]) -> None:
    more = guess({**body, "history": ["x" * 1000], "image": pictures.data_url(pictures.png(640, 480))})
    assert more.prompt_tokens >= guess(body).prompt_tokens + 500
    assert more.images == ((640, 480),)
    assert guess({**body, "temperature": 0.5}).prompt_tokens == guess(body).prompt_tokens


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"max_length": 70}, 70),
        ({"parameters": {"max_new_tokens": 70}}, 70),
        ({"max_tokens": 5, "sampling_params": {"max_new_tokens": 70}}, 70),
        ({"options": {"num_predict": -1}}, 1024),
        ({"generation_config": 7}, 1024),
    ],
)
def test_the_largest_limit_anywhere_counts(fields: dict[str, Any], expected: int) -> None:
    for body in ({"question": "x"}, {"prompt": "x"}):
        workload = guess({**body, **fields})
        assert workload.new_tokens == expected
        assert bool(workload.defaulted) == (expected == 1024)


def test_copies_multiply_wherever_they_stand() -> None:
    assert guess({"question": "x", "n": 2, "params": {"num_beams": 3}}).sequences == 6
    assert guess({"prompt": "x", "n": 2, "params": {"num_return_sequences": 3}}).sequences == 6
    assert guess({"prompt": "x", "n": 2}).sequences == 2
    assert guess({"prompt": ["x", "y"], "params": {"n": 3}}).sequences == 6


@pytest.mark.parametrize("kind", ["image/png", "application/octet-stream"])
def test_a_body_may_be_a_picture(kind: str) -> None:
    workload = guess(pictures.png(640, 480), kind=kind)
    assert (workload.task, workload.images, workload.tensor_bytes) == ("infer", ((640, 480),), 33)


@pytest.mark.parametrize("kind", ["audio/wav", "video/mp4", "application/octet-stream"])
def test_a_body_may_be_sound(kind: str) -> None:
    assert guess(pictures.wav(16_000, data=320_000), kind=kind).audio_seconds == pytest.approx(10, rel=0.01)


def test_an_upload_is_its_files_and_texts() -> None:
    workload = Guess().read(
        upload(
            ("a", "a.png", "image/png", pictures.png(640, 480)),
            ("b", "b.wav", "", pictures.wav(16_000, data=320_000)),
            ("question", None, "", b"x" * 100),
        )
    )
    assert workload.images == ((640, 480),)
    assert workload.audio_seconds == pytest.approx(10, rel=0.01)
    assert workload.prompt_tokens >= 50
    assert workload.tensor_bytes > 320_000


def test_a_form_is_read_as_its_fields() -> None:
    workload = guess(b"prompt=" + b"x" * 100 + b"&max_tokens=7", kind="application/x-www-form-urlencoded")
    assert (workload.new_tokens, workload.defaulted) == (7, ())
    assert workload.prompt_tokens >= 41


def test_a_form_of_too_many_fields_is_refused() -> None:
    with pytest.raises(UnreadableBody, match="more than"):
        guess(b"a=1&" * 3000, kind="application/x-www-form-urlencoded")


@pytest.mark.parametrize("body", [b"hello", b"[1, 2]", b"", b"\xff\xd8\xff"])
def test_what_is_none_of_these_is_refused(body: bytes) -> None:
    with pytest.raises(UnreadableBody):
        guess(body, kind="text/plain")


def test_clamping_lowers_every_limit_and_adds_at_most_one() -> None:
    body = b'{"max_length":99,"parameters":{"max_new_tokens":99},"options":{}}'
    assert Guess().clamp(body, 5) == b'{"max_length":5,"parameters":{"max_new_tokens":5},"options":{}}'
    assert Guess().clamp(b'{"parameters":{}}', 5) == b'{"max_tokens": 5, "parameters":{}}'
