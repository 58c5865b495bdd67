"""Parameters counted from a config, against what the models' own files add up to."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_admission.estimators import ModelConfig

LLAMA = {"model_type": "llama", "vocab_size": 32000, "num_hidden_layers": 32, "num_attention_heads": 32}
QWEN = {"model_type": "qwen2", "num_key_value_heads": 2}
KNOWN: list[tuple[str, dict[str, Any], int, int | None]] = [
    (
        "Llama-2-7B",
        {**LLAMA, "hidden_size": 4096, "intermediate_size": 11008, "num_key_value_heads": 32},
        6_738_415_616,
        None,
    ),
    (
        "Llama-3.1-8B",
        {
            **LLAMA,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_key_value_heads": 8,
            "vocab_size": 128256,
        },
        8_030_261_248,
        None,
    ),
    (
        "Qwen2-1.5B",
        {
            **QWEN,
            "hidden_size": 1536,
            "intermediate_size": 8960,
            "num_hidden_layers": 28,
            "num_attention_heads": 12,
            "vocab_size": 151936,
            "tie_word_embeddings": True,
        },
        1_543_714_304,
        None,
    ),
    (
        "Mixtral-8x7B",
        {
            "model_type": "mixtral",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 32000,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        },
        46_702_792_704,
        12_879_925_248 - 131_072_000,
    ),
    (
        "Qwen3-30B-A3B",
        {
            "model_type": "qwen3_moe",
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "moe_intermediate_size": 768,
            "num_hidden_layers": 48,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "vocab_size": 151936,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "tie_word_embeddings": False,
        },
        30_532_122_624,
        None,
    ),
    (
        "DeepSeek-V3",
        {
            "model_type": "deepseek_v3",
            "q_lora_rank": 1536,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "first_k_dense_replace": 3,
            "moe_layer_freq": 1,
            "tie_word_embeddings": False,
        },
        671_026_419_200,
        None,
    ),
    (
        "Gemma-2-9B",
        {
            "model_type": "gemma2",
            "hidden_size": 3584,
            "intermediate_size": 14336,
            "num_hidden_layers": 42,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 256,
            "vocab_size": 256000,
        },
        9_241_705_984,
        None,
    ),
]


@pytest.mark.parametrize(("name", "config", "total", "active"), KNOWN, ids=[row[0] for row in KNOWN])
def test_parameters_are_those_of_the_model(
    name: str, config: dict[str, Any], total: int, active: int | None
) -> None:
    found = ModelConfig.read(config).parameters
    assert found is not None
    assert found.total == pytest.approx(total, rel=1e-4)
    assert found.active <= found.every <= found.total
    if active is not None:
        assert found.active == pytest.approx(active, rel=1e-4)


def test_only_experts_that_run_are_read_for_one_token() -> None:
    mixture = ModelConfig.read(dict(KNOWN[3][1])).parameters
    dense = ModelConfig.read(dict(KNOWN[0][1])).parameters
    assert mixture is not None
    assert dense is not None
    assert mixture.active < 0.3 * mixture.every
    assert dense.active == dense.every


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "t5", "is_encoder_decoder": True, "num_layers": 12, "num_heads": 12, "d_model": 768},
        {"model_type": "mamba2", "num_hidden_layers": 4, "hidden_size": 64, "vocab_size": 100},
    ],
)
def test_where_the_layers_do_not_tell_nothing_is_made_up(config: dict[str, Any]) -> None:
    assert ModelConfig.read(config).parameters is None
