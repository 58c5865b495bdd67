"""How many elements for each token an MLP holds at once, dense or a mixture of experts.

Owns the keys of feed-forward blocks, and how many parameters they have. Used for activation
peaks and weights, never for caches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_admission.estimators.model.families import has_plain_mlp
from gpu_admission.estimators.model.keys import Keys

_WIDTH = ("intermediate_size", "ffn_hidden_size", "n_inner", "d_ff", "ffn_dim", "decoder_ffn_dim")
_ENCODER_WIDTH = ("encoder_ffn_dim", "intermediate_size", "d_ff", "ffn_dim")
_TOP_K = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "top_k_experts", "ffn_config.moe_top_k")
_EXPERT = (
    "moe_intermediate_size",
    "expert_ffn_hidden_size",
    "ffn_config.ffn_hidden_size",
    "moe_ffn_hidden_size",
)
_EXPERTS = (
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "moe_num_experts",
    "ffn_config.moe_num_experts",
)
_SHARED = (
    "shared_expert_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "shared_intermediate_size",
)


def mlp_elements(keys: Keys, model_type: str, hidden: int) -> int:
    """Of the decoder: the most of its dense blocks and of the experts that run for one token."""
    tensors = _tensors(keys, model_type)
    widths = [
        _mixture(keys),
        *(_block_width(block, hidden) for block in keys.blocks()),
    ]
    return tensors * max(_dense(keys, hidden), *widths)


def mlp_parameters(keys: Keys, model_type: str, hidden: int, index: int) -> tuple[int, int]:
    """Parameters of the MLP of layer ``index``: all, and those that run for one token."""
    matrices = _tensors(keys, model_type)
    dense = matrices * hidden * (keys.size(*_WIDTH, layer=index) or _dense(keys, hidden))
    experts = keys.size(*_EXPERTS)
    if experts is None or keys.size(*_TOP_K) is None or not _mixes(keys, index):
        return dense, dense
    width = keys.size(*_EXPERT) or _dense(keys, hidden)
    beside = hidden * experts + matrices * hidden * _shared(keys, width)
    one = matrices * hidden * width
    return beside + experts * one, beside + min(experts, keys.size(*_TOP_K) or 1) * one


def _mixes(keys: Keys, index: int) -> bool:
    """Whether layer ``index`` is a mixture: some models begin dense, or mix in every other layer."""
    if index < (keys.size("first_k_dense_replace") or 0) or index in (keys.sequence("mlp_only_layers") or ()):
        return False
    step = keys.size("decoder_sparse_step", "moe_layer_freq", "interleave_moe_layer_step") or 1
    return (index + 1) % step == 0


def encoder_mlp_elements(keys: Keys, model_type: str, hidden: int) -> int:
    """Of the encoder of an encoder-decoder model."""
    return _tensors(keys, model_type) * (keys.size(*_ENCODER_WIDTH) or 4 * hidden)


def _tensors(keys: Keys, model_type: str) -> int:
    """Three when there is a gate (gate, up, product), else two."""
    projection = keys.value("feed_forward_proj")
    if isinstance(projection, str):  # T5
        return 3 if projection.startswith("gated") else 2
    return 2 if has_plain_mlp(model_type) else 3


def _dense(keys: Keys, hidden: int) -> int:
    widths = keys.sequence(*_WIDTH)
    if widths is not None:
        return max(keys.size(*_WIDTH, layer=i) or 0 for i in range(len(widths)))
    return keys.size(*_WIDTH) or (keys.size("expansion_ratio") or 4) * hidden


def _mixture(keys: Keys) -> int:
    top_k = keys.size(*_TOP_K)
    if top_k is None:
        return 0
    expert = keys.size(*_EXPERT) or _dense(keys, 0)
    return top_k * expert + _shared(keys, expert)


def _shared(keys: Keys, expert: int) -> int:
    """Width of the experts that run for every token."""
    return keys.size(*_SHARED) or (keys.size("n_shared_experts", "num_shared_experts") or 0) * expert


def _block_width(block: Mapping[str, Any], hidden: int) -> int:
    """Of one block of a pruned model, which gives its width as a multiple of two thirds of hidden."""
    own = Keys([block], {})
    multiple = own.value("ffn.ffn_mult")
    if isinstance(multiple, (int, float)) and 0 < multiple < 100:
        return -(-int(2 * multiple * hidden / 3) // 256) * 256
    return own.size("ffn.intermediate_size") or 0
