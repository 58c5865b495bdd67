"""What vLLM adds to OpenAI's requests."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_admission.types import Workload
from gpu_admission.workloads import VLLM
from tests.workloads import pictures
from tests.workloads.asking import request

IMAGE = {"type": "image_url", "image_url": {"url": pictures.data_url(pictures.png(640, 480))}}


def chat(content: Any = "x" * 1000, *, context: int | None = None, **fields: Any) -> Workload:
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 9, **fields}
    return VLLM(context=context, image_tokens="qwen2-vl").read(request(body))


@pytest.mark.parametrize(
    ("value", "tokens"), [(100, 100), ("100", 100), (10_000, 459), (None, 459), (-1, 459), (0, 459)]
)
def test_a_prompt_is_cut_to_what_is_said(value: Any, tokens: int) -> None:
    assert chat(truncate_prompt_tokens=value).prompt_tokens == tokens


def test_a_negative_cut_is_the_context() -> None:
    assert chat(truncate_prompt_tokens=-1, context=200).prompt_tokens == 200


def test_each_row_is_cut() -> None:
    body = {"input": ["x" * 1000, "x" * 800, "x"], "truncate_prompt_tokens": 100}
    workload = VLLM().read(request(body, "/v1/embeddings"))
    assert (workload.prompt_tokens, workload.total_prompt_tokens, workload.sequences) == (100, 300, 3)


def test_a_request_that_sets_its_own_image_limits_is_charged_for_them() -> None:
    plain = chat([IMAGE]).prompt_tokens
    most = plain - 391 + 16384
    assert chat([IMAGE], mm_processor_kwargs={"max_pixels": 784 * 100}).prompt_tokens == most
    assert (
        chat([IMAGE], mm_processor_kwargs={"min_pixels": 784 * 50_000}).prompt_tokens == most + 50_000 - 16384
    )
    assert chat([IMAGE], mm_processor_kwargs="x").prompt_tokens == most
    assert chat([IMAGE], mm_processor_kwargs={}).prompt_tokens == plain
    assert chat("x", mm_processor_kwargs={"max_pixels": 1}).prompt_tokens == chat("x").prompt_tokens


def test_embeddings_as_prompt_cost_the_context() -> None:
    workload = VLLM(context=4096).read(request({"prompt_embeds": "AAAA", "max_tokens": 5}, "/v1/completions"))
    assert workload.prompt_tokens == 4096
    assert workload.defaulted == ("prompt_embeds",)
    assert VLLM().read(request({"prompt_embeds": "AAAA"})).prompt_tokens == 131_072


@pytest.mark.parametrize("path", ["/pooling", "/classify", "/tokenize"])
def test_its_own_endpoints_generate_nothing(path: str) -> None:
    workload = VLLM().read(request({"input": "x" * 100}, path))
    assert (workload.new_tokens, workload.prompt_tokens) == (0, 43)


@pytest.mark.parametrize(
    ("body", "rows"),
    [
        ({"text_1": "a", "text_2": ["b", "c"]}, 2),
        ({"text_1": ["a", "b"], "text_2": ["c", "d"]}, 2),
        ({"text_1": ["a", "b"], "text_2": "c"}, 2),
        ({"query": "a", "documents": ["b", "c", "d"]}, 3),
    ],
)
def test_scores_are_pairs(body: Any, rows: int) -> None:
    assert VLLM().read(request(body, "/score")).sequences == rows
    assert VLLM().read(request(body, "/v1/rerank")).task == "rerank"


def test_a_cut_is_believed_for_scores_too() -> None:
    body = {"query": "x" * 500, "documents": ["x" * 500] * 3, "truncate_prompt_tokens": 10}
    workload = VLLM().read(request(body, "/rerank"))
    assert (workload.prompt_tokens, workload.total_prompt_tokens) == (10, 30)
