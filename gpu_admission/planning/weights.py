"""How many bytes the weights of a model take, and how many of them one step reads.

Owns the way from parameters and a storage format to bytes. Counting parameters belongs to
``estimators``; if a folder has the weights themselves, their files are measured instead.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from gpu_admission.estimators import ModelConfig
from gpu_admission.estimators.model.dtypes import UNIT, element_size
from gpu_admission.sizes import parse_bytes

_GROUPED = {4: 4.25, 8: 8.125}
"""Bits of a weight that is stored in groups of 128 with a scale and a zero (GPTQ, AWQ)."""
_FORMATS = {"fp8": 8.0, "mxfp4": 4.25}
"""Bits of a weight, for methods that have no ``bits`` in their config."""
_WIDE = 2
"""Bytes of an element that quantised models keep at 16 bits: the tables of embeddings."""


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes; and the parameters that a token's step multiplies with."""

    bytes: int
    read: int
    """The part of ``bytes`` that a step of one token reads: no input table, and only the experts that run."""
    every: int
    """The part of ``bytes`` that a step of many tokens reads: all but the input table."""
    active: int
    """Parameters behind ``read``: a token costs about twice as many operations."""
    parameters: int
    says: str
    """How the bytes were found."""
    eight_bit: bool = False
    """Whether they are 8-bit floating point, which some cards multiply at twice the rate."""


def weights_of(
    source: Mapping[str, Any] | Path,
    model: ModelConfig,
    *,
    dtype: str | None = None,
    given: int | str | None = None,
) -> Weights:
    """The weights of ``model``, whose config is ``source`` (parsed, or a path).

    ``given`` bytes come first, then the files beside the config, then parameters times the size of
    ``dtype`` (by default what the config says, quantisation included). Raises ``ValueError`` naming
    ``--weights`` when none of them tells.
    """
    counted = model.parameters
    bits, stored = _bits(source if isinstance(source, Mapping) else _parsed(source), model, dtype)
    if counted is None and given is None:
        raise ValueError("the config does not tell how many parameters there are: give --weights SIZE")
    if given is not None:
        size, says = parse_bytes(given, name="--weights"), "as given"
    elif dtype is None and isinstance(source, Path) and (found := _files(source)):
        size, says = found, "as stored beside the config"
    else:
        assert counted is not None
        size, says = (
            _stored(counted.total, counted.embeddings, bits),
            f"{counted.total:,} parameters, {stored}",
        )
    if counted is None:
        total = int(size * 8 / bits)
        return Weights(bytes=size, read=size, every=size, active=total, parameters=total, says=says)
    whole, output = _stored(counted.total, counted.embeddings, bits), model.vocab_size * model.hidden_size
    return Weights(
        bytes=size,
        read=size * _stored(counted.active, output, bits) // whole,
        every=size * _stored(counted.every, output, bits) // whole,
        active=counted.active,
        parameters=counted.total,
        says=says,
        eight_bit="fp8" in stored or "float8" in stored,
    )


def _stored(parameters: int, wide: int, bits: float) -> int:
    """Bytes of ``parameters``, of which ``wide`` are never stored in fewer than 16 bits."""
    return int((parameters - wide) * bits / 8 + wide * max(bits / 8, _WIDE))


def _bits(config: Mapping[str, Any], model: ModelConfig, dtype: str | None) -> tuple[float, str]:
    """Bits of a stored weight, and what to call the format."""
    quantised = config.get("quantization_config")
    if dtype is None and isinstance(quantised, Mapping):
        method = str(quantised.get("quant_method", "quantised"))
        if method in _FORMATS:
            return _FORMATS[method], method
        given = quantised.get("bits") or (4 if quantised.get("load_in_4bit") else 8)
        bits = given if isinstance(given, int) and 1 <= given <= 16 else 8
        return _GROUPED.get(bits, float(bits)), f"{method} {bits} bit"
    name = model.computes_in(dtype)
    return element_size(name).element * 8 / UNIT, name


def _files(source: Path) -> int:
    """Bytes of the safetensors beside the config; 0 where there are none."""
    folder = source if source.is_dir() else source.parent
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        size = _parsed(index).get("metadata", {}).get("total_size")
        if isinstance(size, int):
            return size
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def _parsed(source: Path) -> Mapping[str, Any]:
    file = source / "config.json" if source.is_dir() else source
    parsed = json.loads(file.read_text(encoding="utf-8"))
    return parsed if isinstance(parsed, dict) else {}
