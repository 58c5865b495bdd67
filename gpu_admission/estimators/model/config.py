"""``ModelConfig``: the numbers of a model that decide its memory, read from a config.json.

Owns the way from the file to layers: which level of the file describes the decoder, what its
keys are called, and what happens if its family is not known. Formulas are elsewhere.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import msgspec

from gpu_admission.estimators.model.dtypes import DType, dtype_name
from gpu_admission.estimators.model.families import class_defaults, is_known
from gpu_admission.estimators.model.keys import Keys
from gpu_admission.estimators.model.layer_order import Kind, depth_of_lists, layer_kinds
from gpu_admission.estimators.model.layers import Layer, build_layer, cross_attention
from gpu_admission.estimators.model.mlp import encoder_mlp_elements, expert_elements, mlp_elements
from gpu_admission.estimators.model.parameters import Parameters, count_parameters


class ConfigObject(Protocol):
    """A loaded config, such as ``model.config`` of transformers."""

    def to_dict(self) -> dict[str, Any]: ...


_INSIDE = ("text_config", "llm_config", "language_config", "thinker_config", "decoder")
_DEPTH = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "num_decoder_layers")
_HEADS = (
    *("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"),
    *("decoder_attention_heads", "num_decoder_attention_heads", "num_key_value_heads"),
)
_HIDDEN = ("hidden_size", "n_embd", "d_model", "embed_dim", "emb_dim", "dim")
_MOST_LAYERS = 10_000


class UnknownModelType(UserWarning):
    """A config names a family whose layers are not known here: every layer counts as global."""


class Encoder(msgspec.Struct, frozen=True):
    """The encoder of an encoder-decoder model, in elements for each of its tokens."""

    hidden_size: int
    heads: int
    mlp: int
    positions: int
    """Fixed number of positions (Whisper: 1500); 0 = as many as the prompt has tokens."""


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers that sizes depend on: counts and elements, never bytes."""

    model_type: str
    known: bool
    """Whether the rules for this family are known; if not, ``layers`` are all global."""
    layers: tuple[Layer, ...]
    """Layers of the decoder, in order."""
    hidden_size: int
    heads: int
    """Query heads."""
    head_dim: int
    """Size of a head's queries and keys, the widest of all layers."""
    kv_heads: int
    """Key/value heads, the most of all layers."""
    mlp: int
    """Elements for each token that a layer's MLP holds at once: gate, up and product, or two of them;
    in a mixture of the experts that run for it, and what is gathered for them."""
    experts: int
    """Elements of the expert weights that a decoding step copies for each row; 0 = none."""
    vocab_size: int
    max_positions: int | None = None
    dtype: str | None = None
    encoder: Encoder | None = None
    parameters: Parameters | None = None
    """Parameters of the decoder, if the config says: not for encoder-decoder and recurrent models."""
    vision: Mapping[str, Any] | None = None
    """The ``vision_config`` as it is, for estimators that read images."""

    prefix: int = 0
    """Tokens that the model puts before each prompt by itself."""

    @property
    def image_positions(self) -> int:
        """Of an image in cross-attention: the patches of its tiles, and one token each (Llama 3.2: 4 x
        1601); 0 where the decoder does not attend to images."""
        if self.encoder is not None or not any(layer.cross for layer in self.layers):
            return 0
        vision = self.vision or {}
        side = int(vision.get("image_size", 560)) // int(vision.get("patch_size", 14))
        return (side * side + 1) * int(vision.get("max_num_tiles", 4))

    @classmethod
    def read(cls, source: ConfigSource) -> ModelConfig:
        """The config at a path (the file, or the folder with it), in a ``dict`` as parsed, or loaded:
        ``model.config`` of transformers.

        Warns with ``UnknownModelType``. Raises ``ValueError`` when it lacks layers, heads or
        sizes that its class does not fill in, or has something that is no number there.
        """
        return source if isinstance(source, ModelConfig) else _read(config_dict(source))

    def computes_in(self, dtype: DType | None) -> str:
        """The name of ``dtype``, or what the config names. Raises ``ValueError`` when neither is there."""
        name = self.dtype if dtype is None else dtype_name(dtype, option="dtype")
        if not name:
            raise ValueError("dtype is needed: the model config does not name one")
        return name


ConfigSource: TypeAlias = ModelConfig | ConfigObject | Mapping[str, Any] | str | os.PathLike[str]
"""Where a config is: a path (of the file, or the folder with it), a ``dict`` as parsed, or loaded."""


def config_dict(source: ConfigObject | Mapping[str, Any] | str | os.PathLike[str]) -> Mapping[str, Any]:
    """The parsed config of ``source``. Raises ``TypeError`` if it is none, and whatever ``open`` raises."""
    if isinstance(source, Mapping):
        return source
    if isinstance(source, (str, os.PathLike)):
        return _load(Path(source))
    if callable(said := getattr(source, "to_dict", None)) and isinstance(config := said(), Mapping):
        return config
    raise TypeError(
        f"config must be a path, a dict, or a loaded config such as model.config, not {type(source).__name__}"
    )


def _load(path: Path) -> Mapping[str, Any]:
    file = path / "config.json" if path.is_dir() else path
    if not file.exists():
        raise FileNotFoundError(
            f"there is no {str(path)!r}: a model's config is the path of its config.json (or of the folder), "
            "a dict, or what AutoConfig.from_pretrained(...) returns"
        )
    config = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(config, dict):
        raise ValueError(f"{file} is not the config of a model: it holds no JSON object")
    return config


def _read(config: Mapping[str, Any]) -> ModelConfig:
    classes = class_defaults()
    levels = _levels(config)
    model_type = _model_type(levels, classes.nested)
    known = is_known(model_type, classes)
    if not known:
        text = f"model_type {model_type!r} is not known: every layer is taken to store all tokens"
        warnings.warn(text, UnknownModelType, stacklevel=3)
    keys = Keys(levels, classes.defaults.get(model_type, {}))
    crossed = any(level.get("is_encoder_decoder") is True for level in levels) or _crossed(keys)
    kinds = layer_kinds(keys, model_type if known else None, _depth(keys, crossed))
    hidden, heads = _width(keys, kinds, crossed)
    shared = (keys.size("num_kv_shared_layers") or 0) if known else 0
    layers = tuple(_layers(keys, kinds, heads, hidden, crossed, shared))
    passed = _passed(keys, layers)
    stored = [a for layer in layers if (a := layer.attention or layer.cross)]
    vision = keys.value("vision_config")
    vocab = keys.size("vocab_size", "padded_vocab_size") or 0
    return ModelConfig(
        model_type=model_type,
        known=known,
        layers=passed * (2 if model_type == "longcat_flash" and not keys.value("num_hidden_layers") else 1),
        hidden_size=hidden,
        heads=heads,
        head_dim=max((a.key_dim for a in stored), default=-(-hidden // heads)),
        kv_heads=max((a.heads for a in stored), default=heads),
        mlp=mlp_elements(keys, model_type, hidden),
        experts=expert_elements(keys, model_type, hidden),
        vocab_size=vocab,
        max_positions=keys.size(
            "max_position_embeddings", "n_positions", "max_seq_len", "max_target_positions"
        ),
        dtype=_dtype(keys),
        encoder=_encoder(keys, model_type, hidden, heads) if crossed else None,
        parameters=None
        if crossed
        else count_parameters(keys, model_type, layers, hidden=hidden, heads=heads, vocab=vocab),
        vision=vision if isinstance(vision, Mapping) else None,
        prefix=(keys.size("prompt_length") or 0) if model_type == "cpmant" else 0,
    )


def _passed(keys: Keys, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """``layers`` in the order of passes, some in a loop (Inkling 2): each pass has its own caches."""
    passes = keys.size("loop_num_passes") or 1
    start, end = keys.size("loop_layer_index_start") or 0, keys.size("loop_layer_index_end") or 0
    return (*layers, *layers[start:end] * (min(passes, _MOST_LAYERS) - 1))


def _depth(keys: Keys, crossed: bool) -> int:
    depth = keys.size(*_decoder_first(_DEPTH, crossed)) or depth_of_lists(keys) or 0
    if not 0 < depth <= _MOST_LAYERS:
        text = f"the model config must have 1 to {_MOST_LAYERS} layers (num_hidden_layers), got {depth}"
        raise ValueError(text)
    return depth


def _width(keys: Keys, kinds: Sequence[Kind], crossed: bool) -> tuple[int, int]:
    """Hidden size and query heads; a model without attention has no heads and counts as one."""
    hidden = keys.size(*_HIDDEN)
    heads = keys.size(*_decoder_first(_HEADS, crossed)) or (1 if set(kinds) <= {"state", "none"} else None)
    if hidden is None or heads is None:
        text = "the model config lacks hidden_size or num_attention_heads, and its class has no default"
        raise ValueError(text)
    return hidden, heads


def _levels(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """From the level that describes the decoder out to the whole file."""
    levels = [config]
    while inner := next((levels[0][k] for k in _INSIDE if isinstance(levels[0].get(k), Mapping)), None):
        levels.insert(0, inner)
    return levels


def _model_type(levels: Sequence[Mapping[str, Any]], nested: Mapping[str, str]) -> str:
    """The type of the innermost level: its own, or the inner type that the level around it implies."""
    name = ""
    for level in reversed(levels):
        own = level.get("model_type")
        name = own if isinstance(own, str) and own else nested.get(name, name)
    while name in nested:
        name = nested[name]
    return name


def _crossed(keys: Keys) -> bool:
    return keys.value("is_encoder_decoder") is True or keys.value("add_cross_attention") is True


def _decoder_first(names: tuple[str, ...], crossed: bool) -> tuple[str, ...]:
    """In an encoder-decoder model, the plain names mean its encoder."""
    return tuple(sorted(names, key=lambda name: "decoder" not in name)) if crossed else names


def _layers(
    keys: Keys, kinds: Sequence[Kind], heads: int, hidden: int, crossed: bool, shared: int
) -> Iterator[Layer]:
    cross = cross_attention(keys, heads, hidden) if crossed else None
    blocks = keys.blocks()
    for i, kind in enumerate(kinds):
        own = keys.over(blocks[i] if i < len(blocks) else _layer_values(keys, i))
        kind = kind if i < len(kinds) - shared else "none"
        layer = build_layer(own, kind, i, query_heads=heads, hidden=hidden)
        yield msgspec.structs.replace(layer, cross=cross) if cross else layer


def _layer_values(keys: Keys, index: int) -> Mapping[str, Any]:
    """What one layer has of its own, as newer files write it."""
    values = keys.value(f"per_layer_config.{index:02d}", f"per_layer_config.{index}")
    return values if isinstance(values, Mapping) else {}


def _encoder(keys: Keys, model_type: str, hidden: int, heads: int) -> Encoder:
    return Encoder(
        hidden_size=hidden,
        heads=keys.size("encoder_attention_heads") or heads,
        mlp=encoder_mlp_elements(keys, model_type, hidden),
        positions=(keys.size("max_source_positions") or 0) if model_type == "whisper" else 0,
    )


def _dtype(keys: Keys) -> str | None:
    name = keys.value("dtype", "torch_dtype")
    return name if isinstance(name, str) and name != "auto" else None
