"""Which kind each layer of a model is, in order, from the many ways a config.json says so.

Owns the reading of patterns, one function for each, and the order in which they are tried.
Sizes of a layer are in ``layers``; what a family does by itself is in ``families``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

from gpu_admission.estimators.model.families import layer_cycle, slides_everywhere
from gpu_admission.estimators.model.keys import Keys

Kind = Literal["global", "sliding", "chunked", "state", "hybrid", "hybrid sliding", "cross", "none"]

_NAMES: dict[str, Kind] = {
    "sliding_attention": "sliding",
    "local_attention": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "state",
    "mamba": "state",
    "mamba2": "state",
    "conv": "state",
    "recurrent": "state",
    "hybrid": "hybrid",
    "hybrid_sliding": "hybrid sliding",
}
# For models whose blocks do one thing each; elsewhere a layer with this name may still attend.
_BLOCKS: dict[str, Kind] = {"mlp": "none", "moe": "none"}
_LETTERS: dict[str, Kind] = {
    "s": "sliding",
    "c": "chunked",
    "S": "state",
    "H": "hybrid",
    "G": "global",
    "M": "state",
    "*": "global",
    "-": "none",
    "E": "none",
    "L": "sliding",
}


def layer_kinds(keys: Keys, model_type: str | None, depth: int) -> list[Kind]:
    """The kind of each of ``depth`` layers: ``global``, the costliest, unless something says otherwise."""
    kinds: list[Kind] | None = None
    if model_type is not None:
        found = (reader(keys, model_type, depth) for reader in _READERS)
        kinds = next((kinds for kinds in found if kinds is not None), None)
    kinds = kinds or []
    return [kinds[i] if i < len(kinds) else "global" for i in range(depth)]


def depth_of_lists(keys: Keys) -> int | None:
    """The depth as the length of a list that has one entry a layer, for configs that give no number."""
    listed = keys.sequence("layer_types", "layers_block_type", "hybrid_layer_pattern", "block_configs")
    pattern = keys.value("hybrid_override_pattern")
    return len(listed) if listed else len(pattern) if isinstance(pattern, str) and pattern else None


def _choose(flags: Iterable[object], yes: Kind, no: Kind) -> list[Kind]:
    return [yes if flag else no for flag in flags]


def _names(keys: Keys, model_type: str, depth: int) -> list[Kind] | None:
    if names := keys.sequence("layer_types"):
        return [_NAMES.get(str(name), "global") for name in names]
    blocks = keys.sequence("layers_block_type")
    return [_BLOCKS.get(str(name)) or _NAMES.get(str(name), "global") for name in blocks] if blocks else None


def _override_pattern(keys: Keys, model_type: str, depth: int) -> list[Kind] | None:
    pattern = keys.value("hybrid_override_pattern")
    return [_LETTERS.get(c, "global") for c in pattern] if isinstance(pattern, str) else None


def _flags(keys: Keys, model_type: str, depth: int) -> list[Kind] | None:
    """One flag a layer: windowed (MiMo), attention (MiniMax), rotary and therefore chunked (Llama 4)."""
    if flags := keys.sequence("hybrid_layer_pattern"):
        return _choose(flags, "sliding", "global")
    if flags := keys.sequence("attn_type_list"):
        return _choose(flags, "global", "state")
    if model_type.startswith("llama4") and (flags := keys.sequence("no_rope_layers")):
        return _choose(flags, "chunked", "global")
    return None


def _blocks(keys: Keys, model_type: str, depth: int) -> list[Kind] | None:
    """Pruned models: a block without attention, or with a matrix in its place, stores nothing."""
    if blocks := keys.blocks():
        skipped = ("attention.no_op", "attention.replace_with_linear")
        return _choose((keys.over(b).value(*skipped) for b in blocks), "none", "global")
    kept = keys.size("n_attention_layers")
    return None if kept is None else _choose((i < kept for i in range(depth)), "global", "none")


def _indices(keys: Keys, model_type: str, depth: int) -> list[Kind] | None:
    """Lists of the layers that have attention, or cross-attention; the others keep a state."""
    if listed := keys.sequence("cross_attention_layers"):
        return _choose((i in listed for i in range(depth)), "cross", "global")
    if listed := keys.sequence("linear_attn_config.full_attn_layers"):
        return _choose((i + 1 in listed for i in range(depth)), "global", "state")
    if listed := keys.sequence("attn_layer_indices", "full_attn_idxs"):
        return _choose((i in listed for i in range(depth)), "global", "state")
    return None


def _periods(keys: Keys, model_type: str, depth: int) -> list[Kind] | None:
    if (every := keys.size("attn_layer_period")) is not None:
        first = (keys.size("attn_layer_offset") or 0) % every
        attending: Kind = "hybrid" if model_type.startswith("zamba") else "global"
        return _choose((i % every == first for i in range(depth)), attending, "state")
    if (every := keys.size("full_attention_interval")) is not None:
        return _choose(((i + 1) % every for i in range(depth)), "state", "global")
    if (every := keys.size("global_attn_every_n_layers")) is not None:
        first = 0 if model_type.startswith("modernbert") else every - 1
        return _choose((i % every == first for i in range(depth)), "global", "sliding")
    return None


def _window_pattern(keys: Keys, model_type: str, depth: int) -> list[Kind] | None:
    pattern = keys.value("sliding_window_pattern", "_sliding_window_pattern")
    if isinstance(pattern, str) and pattern:
        return [_LETTERS.get(pattern[i % len(pattern)], "global") for i in range(depth)]
    every = keys.size("sliding_window_pattern", "_sliding_window_pattern")
    return None if every is None else _choose(((i + 1) % every for i in range(depth)), "sliding", "global")


def _cycle(keys: Keys, model_type: str, depth: int) -> list[Kind] | None:
    if names := keys.sequence("block_types"):
        return _choose((names[i % len(names)] == "recurrent" for i in range(depth)), "state", "sliding")
    cycle = layer_cycle(model_type)
    return [_LETTERS[cycle[i % len(cycle)]] for i in range(depth)] if cycle else None


def _everywhere(keys: Keys, model_type: str, depth: int) -> list[Kind] | None:
    if slides_everywhere(model_type):
        return ["sliding" for _ in range(depth)]
    first = keys.size("max_window_layers") if keys.value("use_sliding_window") is True else None
    return None if first is None else _choose((i >= first for i in range(depth)), "sliding", "global")


_READERS: tuple[Callable[[Keys, str, int], list[Kind] | None], ...] = (
    _names,
    _override_pattern,
    _flags,
    _blocks,
    _indices,
    _periods,
    _window_pattern,
    _cycle,
    _everywhere,
)
