"""Text Generation Inference, field by field."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_admission.errors import UnreadableBody
from gpu_admission.types import Workload
from gpu_admission.workloads import TGI
from tests.workloads import pictures
from tests.workloads.asking import request


def generate(inputs: Any = "x" * 100, path: str = "/generate", **parameters: Any) -> Workload:
    return TGI().read(request({"inputs": inputs, "parameters": parameters}, path))


def test_a_request_says_what_it_asks() -> None:
    workload = generate(max_new_tokens=50, best_of=3, decoder_input_details=True)
    assert (workload.prompt_tokens, workload.new_tokens, workload.sequences) == (43, 50, 3)
    assert workload.prompt_logprobs
    assert workload.defaulted == ()


def test_a_prompt_is_cut_to_what_is_said() -> None:
    assert generate(truncate=10).prompt_tokens == 10
    assert generate(truncate=1000).prompt_tokens == 43
    assert generate(truncate=None).prompt_tokens == 43


@pytest.mark.parametrize(("path", "stream"), [("/generate", False), ("/generate_stream", True), ("/", False)])
def test_streams_are_seen(path: str, stream: bool) -> None:
    assert generate(path=path).stream is stream
    assert TGI().read(request({"inputs": "x", "stream": True}, path)).stream


def test_no_limit_is_the_rest_of_the_context() -> None:
    workload = TGI(context=100).read(request({"inputs": "x" * 100, "parameters": None}))
    assert (workload.new_tokens, workload.defaulted) == (57, ("max_new_tokens",))


def test_beams_multiply() -> None:
    workload = generate(num_beams=4)
    assert (workload.sequences, workload.beams) == (4, 4)


def test_several_inputs_are_rows() -> None:
    workload = generate(["x" * 100, "x"])
    assert (workload.sequences, workload.prompt_tokens, workload.total_prompt_tokens) == (2, 43, 46)


@pytest.mark.parametrize("parameters", [[], "x", 5, True])
def test_parameters_must_be_an_object(parameters: Any) -> None:
    with pytest.raises(UnreadableBody, match="parameters"):
        TGI().read(request({"inputs": "x", "parameters": parameters}))


@pytest.mark.parametrize("padding", [0, 300_000])
def test_pictures_are_links_only_for_a_model_that_sees(padding: int) -> None:
    link = f"![]({pictures.data_url(pictures.png(640, 480) + bytes(padding))})"
    body = {"inputs": f"{link} what is it? ![x](https://example.org/a.png)"}
    seeing = TGI(image_tokens="gemma-3").read(request(body))
    assert seeing.images == ((640, 480), (0, 0))
    assert 2 * 256 < seeing.prompt_tokens < 2 * 256 + 50
    reading = TGI().read(request(body))
    assert reading.images == ()
    assert reading.prompt_tokens >= len(link) // 2


@pytest.mark.parametrize(
    "text", ["![", "![a](data:image/", "![](https://x", "![[", "![](https://a ![](https://b) "]
)
def test_broken_links_cost_no_more_time_than_text(text: str) -> None:
    workload = TGI(image_tokens="gemma-3").read(request({"inputs": text * 9_000}))
    assert len(workload.images) == 9_000 * text.count("https://a")
    assert workload.prompt_tokens > 9_000


def test_chat_is_read_as_openais() -> None:
    body = {"messages": [{"role": "user", "content": "x" * 100}], "max_tokens": 7}
    assert TGI().read(request(body, "/v1/chat/completions")).new_tokens == 7
    assert TGI().clamp(request(body).body, 5) == request({**body, "max_tokens": 5}).body


def test_nothing_is_still_something() -> None:
    assert TGI().read(request({"inputs": None})).prompt_tokens == 1


def test_content_without_any_text_is_a_prompt_all_the_same() -> None:
    assert TGI().read(request({"content": {}}, "/embed")).prompt_tokens == 1
