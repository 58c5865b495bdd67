"""The formulas beside what every decoder class of transformers was traced to hold, at its own sizes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpu_admission.estimators import KVCache, TransformersLM
from gpu_admission.types import Workload
from tests.estimators.published import load

transformers = pytest.importorskip("transformers", reason="its classes know their own sizes")
pytestmark = pytest.mark.filterwarnings("ignore")
ROWS = load("causal_classes.json")["rows"]


def config_of(row: dict[str, Any]) -> dict[str, Any]:
    """Its config.json, with all that its class fills in."""
    config = transformers.AutoConfig.for_model(row["model_type"])
    return {**json.loads(config.to_json_string(use_diff=False)), "model_type": row["model_type"]}


@pytest.mark.parametrize("row", [row for row in ROWS if "elements" in row], ids=lambda row: row["model_type"])
def test_no_cache_is_charged_less_than_it_holds_or_much_more_without_a_word(row: dict[str, Any]) -> None:
    estimate = KVCache.from_config(config_of(row), kv_dtype="bf16").estimate(Workload(prompt_tokens=300))
    ratio = estimate.bytes / (2 * row["elements"])
    assert ratio >= 0.98
    assert ratio <= 1.5 or estimate.notes


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["model_type"])
def test_no_prefill_is_charged_less_than_it_was_traced_to_take(row: dict[str, Any]) -> None:
    lm = TransformersLM.from_config(
        config_of(row), dtype="bf16", attention=row["attention"], sampling="greedy"
    )
    assert lm.estimate(Workload(prompt_tokens=1024, new_tokens=1)).bytes >= 0.98 * row["prefill"]
