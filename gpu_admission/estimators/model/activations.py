"""What one transformer layer holds while it runs: activations, scores and masks, in bytes.

Owns the sizes for each token, and for each pair of positions. Caches are in ``layers``; which
phase is the peak is up to the estimator.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from gpu_admission.estimators.model.config import ModelConfig
from gpu_admission.estimators.model.dtypes import whole_bytes
from gpu_admission.estimators.model.families import heavier, lacks_sdpa, rotates_wide, scan_bytes, streams

AttentionPath = Literal["sdpa", "eager", "flash"]


def attention_of(model: ModelConfig, asked: AttentionPath) -> tuple[AttentionPath, tuple[str, ...]]:
    """What really runs when ``asked`` is configured, and a note if that is something else."""
    if asked != "sdpa" or not lacks_sdpa(model.model_type):
        return asked, ()
    return "eager", (f"{model.model_type} has no fused attention of torch's: charged as eager",)


class LayerCost(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of one running layer. Only one is alive at a time."""

    activations: int
    """For each token: the larger of its MLP and its attention block, with copies of the residual."""
    hidden: int
    """For each token: what a layer passes on."""
    score: int = 0
    """For each pair of positions, where the attention stores its scores."""
    mask: int = 0
    """For each pair of positions and mask, where there is one."""
    expanded_mask: int = 0
    """For each pair of positions: the copy of a mask that a kernel makes."""


def layer_cost(
    *,
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    mlp: int,
    dtype: str,
    attention: AttentionPath,
    beside: int = 0,
    wide_rotation: bool = False,
    recurrent: int = 0,
) -> LayerCost:
    """The cost of a layer of this shape. Raises ``ValueError`` for an unknown dtype or attention.

    ``eager`` stores scores around the softmax (8 bytes each, 10 in bf16, which has no fused cast) and
    a mask in the compute type; ``sdpa`` one byte a mask and the expansion of one; ``flash`` nothing.
    ``beside``: elements that live throughout the layer; ``recurrent``: bytes of a layer with a state.
    """
    if attention not in ("sdpa", "eager", "flash"):
        raise ValueError(f"attention must be 'sdpa', 'eager' or 'flash', not {attention!r}")
    size = whole_bytes(dtype, option="dtype")
    queries, keys = heads * head_dim, kv_heads * head_dim
    repeated = 2 * queries if attention != "flash" and kv_heads < heads else 0
    attending = (6 if wide_rotation else 4) * (queries + keys) + repeated
    eager = attention == "eager"
    return LayerCost(
        activations=max((max(mlp, attending) + 4 * hidden + beside) * size, recurrent),
        hidden=hidden * size,
        score=heads * score_bytes(dtype) if eager else 0,
        mask=0 if attention == "flash" else size if eager else 1,
        expanded_mask=size if attention == "sdpa" else 0,
    )


def score_bytes(dtype: str) -> int:
    """Bytes of one stored score around an unfused softmax: 8, or 10 in bf16, which has no fused cast."""
    return 10 if dtype.removeprefix("torch.").lower() in ("bf16", "bfloat16") else 8


def decoder_cost(model: ModelConfig, dtype: str, attention: AttentionPath) -> LayerCost:
    """The cost of the widest decoder layer, or of an encoder-only model's layers."""
    cost = layer_cost(
        hidden=model.hidden_size,
        heads=model.heads,
        kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        mlp=model.mlp,
        beside=streams(model.model_type) * model.hidden_size,
        wide_rotation=rotates_wide(model.model_type),
        recurrent=_scanned(model),
        dtype=dtype,
        attention=attention,
    )
    times = heavier(model.model_type)
    return cost if times == 1 else msgspec.structs.replace(cost, activations=round(times * cost.activations))


def _scanned(model: ModelConfig) -> int:
    """Bytes for each token of a recurrent layer, at 32 bits and without a fused kernel."""
    states = [layer.state.matrix for layer in model.layers if layer.state]
    return round(max(states, default=0) * scan_bytes(model.model_type))


def encoder_cost(model: ModelConfig, dtype: str, attention: AttentionPath) -> LayerCost | None:
    """The cost of an encoder layer of an encoder-decoder model; ``None`` for others."""
    encoder = model.encoder
    if encoder is None:
        return None
    return layer_cost(
        hidden=encoder.hidden_size,
        heads=encoder.heads,
        kv_heads=encoder.heads,
        head_dim=model.head_dim,
        mlp=encoder.mlp,
        dtype=dtype,
        attention=attention,
    )
