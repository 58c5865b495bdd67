"""What a transformers configuration says before its model is made: its kind, its windows, its limits.

Owns the reading of configurations, and nothing of how they are traced.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import torch
import transformers
from transformers.models.auto import modeling_auto as auto

Kind: TypeAlias = Literal["causal", "encoder-decoder", "speech", "vision-language", "encoder"]

_WINDOW_KEYS: Final = ("attention_chunk_size", "sliding_window", "window_size", "sliding_window_size")
_LIMIT_KEYS: Final = ("max_position_embeddings", "n_positions", "max_target_positions", "n_ctx", "seq_length")


def read_config(source: Any) -> Any:
    """The configuration of a path (``config.json`` or its folder), a ``dict``, or a configuration.

    Raises ``ValueError`` when there is no ``model_type`` that this transformers knows.
    """
    if isinstance(source, transformers.PretrainedConfig):
        return source
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        source = json.loads((path / "config.json" if path.is_dir() else path).read_text())
    if not isinstance(source, Mapping) or "model_type" not in source:
        raise ValueError("a transformers config needs a model_type")
    values = {name: value for name, value in source.items() if name != "model_type"}
    return transformers.AutoConfig.for_model(source["model_type"], **values)


def kind_of(config: Any) -> Kind:
    """Which ready-made trace fits, by the mappings of transformers and by ``architectures``."""
    name = config.model_type
    generates = any(
        a.endswith(("CausalLM", "LMHeadModel")) for a in getattr(config, "architectures", None) or ()
    )
    if name in auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES:
        return "speech"
    if (
        getattr(config, "is_encoder_decoder", False)
        and name in auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
    ):
        return "encoder-decoder"
    if name in auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES and not generates:
        return "vision-language"
    masked = name in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    if name in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and (generates or not masked or _decodes(config)):
        return "causal"
    return "encoder"


def _decodes(config: Any) -> bool:
    return bool(getattr(config, "is_decoder", False))


def torch_dtype(config: Any, name: str | None) -> torch.dtype:
    """What the model computes in: ``name``, else what its config says, else bfloat16."""
    found = name or getattr(config, "dtype", None) or "bfloat16"
    if isinstance(found, torch.dtype):
        return found
    short = {"bf16": "bfloat16", "f16": "float16", "fp16": "float16", "half": "float16"}
    dtype = getattr(torch, short.get(found, {"f32": "float32", "fp32": "float32"}.get(found, found)), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"dtype must be a name such as 'bfloat16' or 'float16', got {name!r}")
    return dtype


def windows(config: Any, *, chunks: bool) -> tuple[int, ...]:
    """Lengths at which its layers start to drop tokens, or to need a mask of their own; with ``chunks``
    also those of chunked attention, beyond which flash attention refuses to run."""
    keys = _WINDOW_KEYS if chunks else _WINDOW_KEYS[1:]
    found = {w for part in _parts(config) if _windowed(part) for w in _sizes(part, keys)}
    return tuple(sorted(found))


def longest(config: Any) -> int | None:
    """Positions that it can take, where its config says."""
    found = [n for part in _parts(config) for n in _sizes(part, _LIMIT_KEYS)]
    return min(found, default=None)


def _parts(config: Any) -> Iterator[Any]:
    yield config
    if (text := config.get_text_config()) is not config:
        yield text


def _windowed(config: Any) -> bool:
    if getattr(config, "use_sliding_window", True) is False:
        return False
    kinds = getattr(config, "layer_types", None)
    return not kinds or any("full" not in str(kind) for kind in kinds)


def _sizes(config: Any, keys: tuple[str, ...]) -> list[int]:
    values = [getattr(config, key, None) for key in keys]
    return [v for v in values if isinstance(v, int) and not isinstance(v, bool) and v >= 8]
