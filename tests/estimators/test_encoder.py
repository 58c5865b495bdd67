"""``Encoder``: padded batches that run once."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_admission.estimators import Encoder
from gpu_admission.types import Workload
from tests.estimators.published import GEMMA, GIB, LLAMA, T5, table

BERT = {"model_type": "bert", "num_hidden_layers": 24, "num_attention_heads": 16, "hidden_size": 1024}
RERANKER = {
    "model_type": "qwen3",
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 1024,
    "intermediate_size": 3072,
}


def parts(config: dict[str, Any] = BERT, rows: int = 4, length: int = 512, **options: Any) -> dict[str, int]:
    encoder = Encoder.from_config(config, **{"dtype": "f16", "attention": "flash", **options})
    return dict(encoder.estimate(Workload(prompt_tokens=length, sequences=rows)).parts)


def test_every_row_costs_as_much_as_the_longest() -> None:
    attending = 4 * 1024 + 4 * 1024  # queries and keys, wider than the MLP of this one
    token = (attending + 4 * 1024 + 1024) * 2
    assert parts() == {"activations": 4 * 512 * token}


def test_published_dense_allocations_are_covered() -> None:
    (mask, *_), (scores, *_) = (row[1:] for row in table("dense-attention-tensors")[:2])
    assert (mask, scores) == (32, 32)
    causal = parts(LLAMA, 32, 32768, dtype="f32", attention="eager")["scores and masks"]
    assert causal - 32 * 32768**2 * 32 * 8 == 137_438_953_472
    unfused = parts(BERT, 32, 8192, dtype="f32", attention="eager")["scores and masks"]
    assert unfused >= 137_438_953_472


def test_a_reranker_that_leaves_its_cache_on_holds_every_documents_keys_and_values() -> None:
    for documents, gigabytes in table("qwen3-reranker"):
        cached = parts(RERANKER, documents, 32768, dtype="bf16", keeps_cache=True)["cache"]
        assert cached == documents * 32768 * 114688
        assert cached / GIB <= gigabytes
    assert "cache" not in parts(RERANKER)


def test_rows_beyond_what_the_server_runs_at_once_and_tokens_that_it_cuts_off_are_free() -> None:
    assert parts(rows=100, max_batch=4, length=9000, max_length=512) == parts()


def test_windowed_layers_need_a_mask_more() -> None:
    plain = parts(LLAMA, attention="sdpa")["scores and masks"]
    assert parts(GEMMA, attention="sdpa")["scores and masks"] == plain * 4 // 3


def test_of_an_encoder_decoder_only_the_encoder_runs() -> None:
    token = (5 * 16384 + 4 * 4096 + 4096) * 2  # its gate is an activation in steps
    wide = {**T5, "d_ff": 16384, "feed_forward_proj": "gated-gelu"}
    assert parts(wide)["activations"] == 4 * 512 * token


def test_an_unknown_model_and_assumed_values_are_in_the_notes() -> None:
    with pytest.warns(match="not known"):
        encoder = Encoder.from_config({**LLAMA, "model_type": "x"}, dtype="f16")
    notes = encoder.estimate(Workload(defaulted=("truncate",))).notes
    assert "'x'" in notes[0]
    assert "truncate" in notes[1]


@pytest.mark.parametrize("options", [{"max_batch": 0}, {"max_length": 0}, {"dtype": None}])
def test_an_option_that_makes_no_sense_is_named(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        parts(**options)


# Bytes of 4 rows of 512 tokens in bf16: traces of transformers 5.24's code with two layers at true width.
TRACED: list[tuple[dict[str, Any], int]] = [
    ({"model_type": "bert"}, 35_651_585),
    ({"model_type": "mpnet"}, 99_614_721),
    ({"model_type": "deberta-v2"}, 310_394_880),
    ({"model_type": "clip_text_model"}, 34_603_008),
    ({"model_type": "albert"}, 303_562_753),
    ({"model_type": "esm", "hidden_act": "gelu", "hidden_size": 768, "intermediate_size": 3072}, 63_963_137),
    ({"model_type": "modernbert"}, 49_549_314),
]


@pytest.mark.parametrize(("config", "traced"), TRACED, ids=[config["model_type"] for config, _ in TRACED])
def test_an_encoder_is_not_below_what_its_own_code_was_traced_to_hold(
    config: dict[str, Any], traced: int
) -> None:
    estimate = Encoder.from_config(config, dtype="bf16").estimate(Workload(prompt_tokens=512, sequences=4))
    assert 0.99 * traced <= estimate.bytes <= 1.75 * traced
    assert estimate.bytes <= 1.5 * traced or "charged as eager" in estimate.notes[0]
