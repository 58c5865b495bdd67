"""Reranking, in the words of Cohere, Jina, TEI and vLLM."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_admission.errors import UnreadableBody
from gpu_admission.types import Workload
from gpu_admission.workloads import Rerank
from tests.workloads import pictures
from tests.workloads.asking import request


def rerank(dialect: Rerank | None = None, /, **fields: Any) -> Workload:
    return (dialect or Rerank()).read(request({"query": "x" * 100, **fields}, "/rerank"))


@pytest.mark.parametrize("name", ["documents", "texts"])
def test_each_document_is_a_row_with_the_query(name: str) -> None:
    workload = rerank(model="m", **{name: ["y" * 200, "y" * 20]})
    assert (workload.task, workload.model, workload.sequences) == ("rerank", "m", 2)
    assert (workload.prompt_tokens, workload.total_prompt_tokens) == (127, 127 + 54)


def test_documents_may_be_objects() -> None:
    assert rerank(documents=[{"text": "y" * 200}]).prompt_tokens == 127
    assert rerank(documents=[{"title": "y" * 100, "body": "y" * 100}]).prompt_tokens == 127
    seen = rerank(documents=[{"image": pictures.data_url(pictures.png(640, 480))}])
    assert seen.images == ((640, 480),)


def test_the_servers_limits_are_believed() -> None:
    workload = rerank(Rerank(max_length=100, max_batch=4), documents=["y" * 200] * 10)
    assert (workload.prompt_tokens, workload.total_prompt_tokens, workload.sequences) == (100, 1000, 4)


def test_what_a_request_says_to_be_smaller_is_not() -> None:
    assert rerank(documents=["y" * 200], max_tokens_per_doc=1).prompt_tokens == 127
    assert rerank(documents=["y" * 200], max_chunks_per_doc=7).sequences == 7


def test_one_document_may_meet_many_queries() -> None:
    workload = Rerank().read(request({"queries": ["a", "b", "c"], "documents": ["y"]}))
    assert workload.sequences == 3


@pytest.mark.parametrize("fields", [{}, {"documents": []}, {"documents": None}, {"texts": []}])
def test_without_documents_there_is_nothing_to_read(fields: dict[str, Any]) -> None:
    with pytest.raises(UnreadableBody, match="documents"):
        rerank(**fields)


def test_without_a_query_neither() -> None:
    with pytest.raises(UnreadableBody, match="query"):
        Rerank().read(request({"documents": ["x"]}))


@pytest.mark.parametrize("option", ["max_length", "max_batch"])
def test_a_wrong_option_is_named(option: str) -> None:
    with pytest.raises(ValueError, match=option):
        Rerank(**{option: 0})
