"""The published figures in ``data/``, read once for each test that asks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
GIB = 2**30
MIB = 2**20


def load(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((DATA / name).read_text(encoding="utf-8"))
    return data


def table(name: str) -> list[list[Any]]:
    """The rows of one table of ``measured.json``."""
    rows: list[list[Any]] = next(t["rows"] for t in load("measured.json")["tables"] if t["id"] == name)
    return rows


LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "vocab_size": 128256,
}
GEMMA = {
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text",
        "num_hidden_layers": 62,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "sliding_window": 1024,
    },
}
DEEPSEEK = {"model_type": "deepseek_v3", "vocab_size": 129280}
WHISPER = {
    "model_type": "whisper",
    "num_hidden_layers": 32,
    "encoder_layers": 32,
    "encoder_attention_heads": 20,
    "encoder_ffn_dim": 5120,
    "decoder_layers": 32,
    "decoder_attention_heads": 20,
    "decoder_ffn_dim": 5120,
    "d_model": 1280,
    "max_target_positions": 448,
    "max_source_positions": 1500,
    "vocab_size": 51865,
}
T5 = {"model_type": "t5", "num_layers": 24, "num_heads": 64, "d_kv": 64, "d_model": 4096, "d_ff": 10240}
JAMBA = {"model_type": "jamba"}
VIT = {
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "patch_size": 14,
    "image_size": 336,
}
QWEN_VISION = {
    "vision_config": {
        "embed_dim": 1280,
        "num_heads": 16,
        "mlp_ratio": 4,
        "patch_size": 14,
        "spatial_merge_size": 2,
    }
}
