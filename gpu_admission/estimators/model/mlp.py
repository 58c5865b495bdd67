"""How many elements for each token an MLP holds at once, dense or a mixture of experts.

Owns the keys of feed-forward blocks, and how many parameters they have. Used for activation
peaks and weights, never for caches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_admission.estimators.model.families import (
    default_activation,
    expert_tensors,
    fuses_gate,
    has_plain_mlp,
    runs_all_experts,
    weighs_wide,
)
from gpu_admission.estimators.model.keys import Keys

_WIDTH = ("intermediate_size", "ffn_hidden_size", "n_inner", "d_ff", "dim_ff", "ffn_dim", "decoder_ffn_dim")
_ENCODER_WIDTH = ("encoder_ffn_dim", "intermediate_size", "d_ff", "ffn_dim")
_TOP_K = (
    *("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts"),
    "ffn_config.moe_top_k",
)
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
_ACTIVATION = ("hidden_act", "hidden_activation", "activation_function", "activation", "act_fn")
_OWN_GELU = "gelu_of_its_own"
"""Activation of a class that computes it in steps itself, whatever its config calls it."""
_STEPS = {"gelu_new": 5, _OWN_GELU: 5, "gelu_fast": 5, "gelu_accurate": 5, "quick_gelu": 3, "relu2": 3}
"""Tensors alive at once inside an activation that no single kernel computes."""

_SHARED = (
    "shared_expert_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "shared_intermediate_size",
)


def mlp_elements(keys: Keys, model_type: str, hidden: int) -> int:
    """Of the decoder: the most of its dense blocks and of the experts that run for one token.

    Read from the code of transformers 5.24, and within 3 % of the traced peaks of its models.
    """
    tensors = _alive(keys, model_type)
    widths = (_dense(keys, hidden), *(_block_width(block, hidden) for block in keys.blocks()))
    return max(tensors * max(widths), _mixture(keys, model_type, hidden))


def expert_elements(keys: Keys, model_type: str, hidden: int) -> int:
    """Of the weights that a decoding step copies for each row: its experts, gathered for one product.

    0 where there are none, or where every expert sees every token.
    """
    top_k = keys.size(*_TOP_K)
    if top_k is None or keys.size(*_EXPERTS) is None or runs_all_experts(model_type):
        return 0
    return top_k * _tensors(keys, model_type) * hidden * (keys.size(*_EXPERT) or _dense(keys, hidden))


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
    """The same for the encoder of an encoder-decoder model."""
    return _alive(keys, model_type) * (keys.size(*_ENCODER_WIDTH) or 4 * hidden)


def _tensors(keys: Keys, model_type: str) -> int:
    """Three when there is a gate (gate, up, product), else two."""
    projection = keys.value("feed_forward_proj")
    if isinstance(projection, str):  # T5
        return 3 if projection.startswith("gated") else 2
    return 2 if has_plain_mlp(model_type) else 3


def _alive(keys: Keys, model_type: str) -> int:
    """Tensors of the intermediate width at the peak: with a gate and up projection in one matrix
    their product is a fourth, and an activation in steps holds those."""
    named, own = keys.value(*_ACTIVATION), default_activation(model_type)
    steps = _STEPS.get(named if isinstance(named, str) and own != _OWN_GELU else own, 0)
    if keys.value("feed_forward_proj") == "gated-gelu":
        steps = _STEPS["gelu_new"]
    gated = _tensors(keys, model_type) == 3
    return max(steps, 4 if gated and fuses_gate(model_type) else 3 if gated else 2)


def _dense(keys: Keys, hidden: int) -> int:
    widths = keys.sequence(*_WIDTH)
    if widths is not None:
        return max(keys.size(*_WIDTH, layer=i) or 0 for i in range(len(widths)))
    return keys.size(*_WIDTH) or (keys.size("expansion_ratio") or 4) * hidden


def _mixture(keys: Keys, model_type: str, hidden: int) -> int:
    """The experts' gate and up (one matrix), halves and product, beside the rows gathered for them;
    or what they put out: sorted, weighted, put back in order and added up."""
    top_k = keys.size(*_TOP_K)
    if top_k is None:
        return 0
    expert = keys.size(*_EXPERT) or _dense(keys, hidden)
    if runs_all_experts(model_type):
        return (keys.size(*_EXPERTS) or 1) * (4 * expert + hidden + 6) + hidden
    inside = expert_tensors(model_type) * expert + hidden
    router = 6 * (keys.size(*_EXPERTS) or 0)
    put_out = (6 if weighs_wide(model_type) else 4) * hidden
    return top_k * max(inside, put_out) + _shared(keys, expert) + router


def _shared(keys: Keys, expert: int) -> int:
    """Width of the experts that run for every token."""
    count = keys.size("n_shared_experts", "num_shared_experts", "moe_num_shared_experts") or 0
    return keys.size(*_SHARED) or count * expert


def _block_width(block: Mapping[str, Any], hidden: int) -> int:
    """Width of one block of a pruned model, which gives it as a multiple of two thirds of hidden."""
    own = Keys([block], {})
    multiple = own.value("ffn.ffn_mult")
    if isinstance(multiple, (int, float)) and 0 < multiple < 100:
        return -(-int(2 * multiple * hidden / 3) // 256) * 256
    return own.size("ffn.intermediate_size") or 0
