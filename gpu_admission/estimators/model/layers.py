"""The shape of one decoder layer: what it stores for each token, and for each sequence.

Owns the sizes of caches and states in *elements*. How many tokens a runtime keeps, and in
which format, is in ``accountings``.
"""

from __future__ import annotations

import msgspec

from gpu_admission.estimators.model.keys import Keys
from gpu_admission.estimators.model.layer_order import Kind


class Attention(msgspec.Struct, frozen=True):
    """The cache of one attention layer: ``heads`` key and value vectors a token."""

    heads: int
    key_dim: int
    value_dim: int
    window: int = 0
    """Tokens it looks back on; 0 = all."""
    latent: int = 0
    """Elements of the one latent vector that stands for all heads (MLA); 0 = there is none."""
    rope: int = 0
    """The part of ``latent`` with rotary embedding."""
    indexer: int = 0
    """Elements a token of the index that picks tokens (sparse attention); 0 = there is none."""


class State(msgspec.Struct, frozen=True):
    """Recurrent state of one layer, for each sequence whatever its length."""

    matrix: int
    """Elements of the state proper."""
    channels: int
    """Channels of the short convolution before it."""
    kernel: int
    """Columns of that convolution; ``kernel - 1`` are enough to go on from."""


class Layer(msgspec.Struct, frozen=True):
    """What one layer stores; a layer that reuses another's cache, or has none, stores nothing."""

    attention: Attention | None = None
    state: State | None = None
    cross: Attention | None = None
    """Keys and values of what is attended to from outside: an encoder's output, an image."""


def build_layer(keys: Keys, kind: Kind, index: int, *, query_heads: int, hidden: int) -> Layer:
    """The layer ``index`` of ``kind``. Raises ``ValueError`` for a size that is no number."""
    if kind == "none":
        return Layer()
    state = _state(keys, hidden) if kind in ("state", "hybrid", "hybrid sliding") else None
    if kind == "state" and state is not None:
        return Layer(state=state)
    attention = _attention(keys, kind, index, query_heads, hidden)
    if kind == "cross":
        return Layer(cross=attention)
    if state is None and kind in ("hybrid", "hybrid sliding"):
        state = _convolved(keys, attention, hidden)
    return Layer(attention=attention, state=state)


def cross_attention(keys: Keys, query_heads: int, hidden: int) -> Attention:
    """What each decoder layer keeps of the encoder's output: every query head, at full width."""
    head_dim = _head_dim(keys, query_heads, hidden)
    return Attention(query_heads, head_dim, head_dim)


def _attention(keys: Keys, kind: Kind, index: int, query_heads: int, hidden: int) -> Attention:
    if (rank := keys.size("kv_lora_rank")) is not None:
        return _latent(keys, rank, query_heads, _window(keys, kind))
    local = kind in ("sliding", "chunked", "hybrid sliding")
    own = ("swa_num_key_value_heads",) if local else ("num_global_key_value_heads",)
    heads = keys.size(*own, layer=index) or _kv_heads(keys, query_heads, index)
    head_dim = _head_dim(keys, query_heads, hidden)
    key_dim = keys.size("swa_head_dim" if local else "global_head_dim") or head_dim
    value_dim = (keys.size("swa_v_head_dim") if local else None) or keys.size("v_head_dim") or key_dim
    return Attention(heads, key_dim, value_dim, _window(keys, kind), indexer=keys.size("index_head_dim") or 0)


def _latent(keys: Keys, rank: int, heads: int, window: int) -> Attention:
    rope = keys.size("qk_rope_head_dim") or 0
    key_dim = (keys.size("qk_nope_head_dim") or 128) + rope
    return Attention(
        heads,
        key_dim,
        keys.size("v_head_dim") or key_dim,
        window,
        latent=rank + rope,
        rope=rope,
        indexer=keys.size("index_head_dim") or 0,
    )


def _kv_heads(keys: Keys, query_heads: int, index: int) -> int:
    """Key/value heads. One for multi-query models, whatever ``num_kv_heads`` says (Falcon-7B: 71)."""
    if keys.value("multi_query") is True and keys.value("new_decoder_architecture") is not True:
        return 1
    if keys.value("attn_config.attn_type") == "multiquery_attention":
        return 1
    if keys.value("multi_query_attention") is True and (groups := keys.size("multi_query_group_num")):
        return groups
    if grouped := keys.size("attention.n_heads_in_group"):
        return max(1, query_heads // grouped)
    names = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads", "attn_config.kv_n_heads")
    heads = keys.size(*names, "num_key_value_heads_per_layer", layer=index) or query_heads
    return heads if keys.given(*names) else min(heads, query_heads)


def _head_dim(keys: Keys, query_heads: int, hidden: int) -> int:
    """As given; absent or null: hidden / heads, and twice that in Zamba, which attends to two streams."""
    streams = 2 if keys.value("n_mamba_heads") is not None else 1
    given = keys.size("head_dim", "d_kv", "attention_head_dim", *(() if streams > 1 else ("kv_channels",)))
    return given or max(1, streams * hidden // query_heads)


def _window(keys: Keys, kind: Kind) -> int:
    if kind == "chunked":
        return keys.size("attention_chunk_size") or 0
    if kind not in ("sliding", "hybrid sliding") or keys.value("use_sliding_window") is False:
        return 0
    return keys.size("sliding_window", "sliding_window_size", "attention_window_size", "local_attention") or 0


def _state(keys: Keys, hidden: int) -> State | None:
    """The state of a recurrent layer; ``None`` when the config does not say its size."""
    if (kernel := keys.size("conv_L_cache")) is not None:
        return State(0, hidden, kernel)
    if (width := keys.size("lru_width")) is not None:
        return State(width, width, keys.size("conv1d_width") or 4)
    if keys.value("rescale_every") is not None:  # RWKV-4
        return State(2 * hidden + 3 * (keys.size("attention_hidden_size") or hidden), 0, 1)
    return _delta_net(keys) or _lightning(keys, hidden) or _mamba(keys, hidden)


def _convolved(keys: Keys, attention: Attention, hidden: int) -> State | None:
    """Short convolutions of keys, values, and what enters the layer and its MLP (Inkling)."""
    kernel = keys.size("conv_kernel_size")
    channels = attention.heads * (attention.key_dim + attention.value_dim) + 2 * hidden
    return None if kernel is None else State(0, channels, kernel)


def _delta_net(keys: Keys) -> State | None:
    """Gated delta nets (Qwen3-Next), and Kimi's with one head count for all."""
    same = keys.size("linear_attn_config.num_heads", "linear_num_heads")
    value_heads, key_heads = (
        keys.size("linear_num_value_heads") or same,
        keys.size("linear_num_key_heads") or same,
    )
    width = keys.size("linear_attn_config.head_dim", "linear_head_dim")
    key_dim, value_dim = (
        keys.size("linear_key_head_dim") or width,
        keys.size("linear_value_head_dim") or width,
    )
    if not (value_heads and key_heads and key_dim and value_dim):
        return None
    kernel = keys.size("linear_conv_kernel_dim", "linear_attn_config.short_conv_kernel_size") or 4
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    return State(value_heads * key_dim * value_dim, channels, kernel)


def _lightning(keys: Keys, hidden: int) -> State | None:
    """Lightning attention (MiniMax): one square matrix a query head."""
    if keys.sequence("attn_type_list") is None and keys.value("full_attn_alpha_factor") is None:
        return None
    heads = keys.size("num_attention_heads") or 1
    head_dim = _head_dim(keys, heads, hidden)
    return State(heads * head_dim * head_dim, 0, 1)


def _mamba(keys: Keys, hidden: int) -> State | None:
    """Mamba-1 and Mamba-2, which also convolves its two projections of each group."""
    columns = keys.size("state_size", "mamba_d_state", "ssm_state_size")
    kernel = keys.size("conv_kernel", "mamba_d_conv")
    if columns is None or kernel is None:
        return None
    groups = keys.size("n_groups", "mamba_n_groups", "mamba_ngroups") or 0
    inner = _mamba_width(keys, hidden)
    return State(inner * columns, inner + 2 * groups * columns, kernel)


def _mamba_width(keys: Keys, hidden: int) -> int:
    heads = keys.size("mamba_num_heads", "mamba_n_heads", "n_mamba_heads")
    head_dim = keys.size("mamba_head_dim", "mamba_d_head", "mamba_headdim")
    width = keys.size("mamba_d_ssm")
    if keys.value("num_attention_heads") is None:  # nothing but Mamba: its keys have no prefix
        heads, head_dim = heads or keys.size("num_heads"), head_dim or keys.size("head_dim")
        width = keys.size("intermediate_size")
    if heads and head_dim:
        return heads * head_dim
    return width or (keys.size("expand", "mamba_expand") or 2) * hidden
