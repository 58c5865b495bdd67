"""How many parameters a decoder has, and how many of them one token's step reads.

Owns the sums over the layers of a config. Bytes are not known here: the caller says how a
parameter is stored. Encoder-decoder and recurrent models are not summed up.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpu_admission.estimators.model.families import ties_embeddings
from gpu_admission.estimators.model.keys import Keys
from gpu_admission.estimators.model.layers import Attention, Layer
from gpu_admission.estimators.model.mlp import mlp_parameters


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of parameters. Vision towers and other parts beside the decoder are not in them."""

    total: int
    active: int
    """Parameters that a decoding step of one token reads: no input table, only the experts that run."""
    every: int
    """All of ``total`` but the input table: what a step reads when all experts run in it."""
    embeddings: int
    """Parameters of input table and output matrix, which quantised models mostly keep at 16 bits."""


def count_parameters(
    keys: Keys, model_type: str, layers: Sequence[Layer], *, hidden: int, heads: int, vocab: int
) -> Parameters | None:
    """Of a decoder of these ``layers``; ``None`` where their shape does not tell (states, shared caches)."""
    if not vocab or any(layer.attention is None or layer.state or layer.cross for layer in layers):
        return None
    total = active = 0
    for index, layer in enumerate(layers):
        attention = _attention(keys, layer.attention, hidden, heads)
        every, running = mlp_parameters(keys, model_type, hidden, index)
        total += attention + every + 2 * hidden
        active += attention + running + 2 * hidden
    table = vocab * hidden
    tables = table if ties_embeddings(keys, model_type) else 2 * table
    return Parameters(
        total=total + tables + hidden,
        active=active + table + hidden,
        every=total + table + hidden,
        embeddings=tables,
    )


def _attention(keys: Keys, attention: Attention | None, hidden: int, heads: int) -> int:
    assert attention is not None
    if attention.latent:
        return _latent(keys, attention, hidden, heads)
    queries = heads * attention.key_dim
    stored = attention.heads * (attention.key_dim + attention.value_dim)
    bias = queries + stored if _has_bias(keys) else 0
    return hidden * (queries + stored) + heads * attention.value_dim * hidden + bias


def _latent(keys: Keys, attention: Attention, hidden: int, heads: int) -> int:
    """Multi-head latent attention (DeepSeek V2): queries and keys through a narrow matrix each."""
    rank, width = attention.latent - attention.rope, keys.size("q_lora_rank")
    into = heads * attention.key_dim
    queries = width * (hidden + into) if width else hidden * into
    expanded = heads * (attention.key_dim - attention.rope + attention.value_dim)
    return queries + hidden * attention.latent + rank * expanded + heads * attention.value_dim * hidden


def _has_bias(keys: Keys) -> bool:
    return keys.value("attention_bias") is True or keys.value("qkv_bias") is True
