"""Text Embeddings Inference: embed, predict, similarity."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_admission.errors import UnreadableBody
from gpu_admission.types import Workload
from gpu_admission.workloads import TEI
from tests.workloads.asking import request


def embed(inputs: Any, **options: Any) -> Workload:
    return TEI(**options).read(request({"inputs": inputs}, "/embed"))


@pytest.mark.parametrize(
    ("inputs", "rows", "longest", "total"),
    [
        ("x" * 100, 1, 43, 0),
        (["x" * 100, "x"], 2, 43, 46),
        ([1, 2, 3], 1, 3, 0),
        ([[1, 2], [3]], 2, 2, 3),
        ([["x" * 100, "x" * 100], ["x"]], 2, 86, 89),
        ([["x"], None], 2, 3, 4),
        ({"source_sentence": "x" * 100, "sentences": ["x", "x"]}, 3, 43, 49),
    ],
)
def test_each_form_is_rows(inputs: Any, rows: int, longest: int, total: int) -> None:
    workload = embed(inputs)
    assert (workload.sequences, workload.prompt_tokens, workload.total_prompt_tokens) == (
        rows,
        longest,
        total,
    )
    assert (workload.task, workload.new_tokens) == ("embed", 0)


def test_the_servers_limit_is_believed() -> None:
    assert embed(["x" * 1000, "x"], max_length=10).prompt_tokens == 10


def test_openais_name_is_read_too() -> None:
    assert TEI().read(request({"input": "x" * 100})).prompt_tokens == 43


@pytest.mark.parametrize("inputs", [None, [], {}])
def test_without_inputs_there_is_nothing_to_read(inputs: Any) -> None:
    with pytest.raises(UnreadableBody, match="inputs"):
        embed(inputs)


def test_a_wrong_option_is_named() -> None:
    with pytest.raises(ValueError, match="max_length"):
        TEI(max_length=0)
