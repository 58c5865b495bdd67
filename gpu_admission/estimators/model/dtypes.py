"""Bytes of one stored element, by the name that runtimes give a cache or compute type.

Owns the names and their sizes, exact: block formats are counted with their scales
(``q8_0`` is 34 bytes for 32 elements, not 32). No model is known here.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

import msgspec

UNIT = 256
"""Sizes are whole 1/256 bytes, so that every format is an exact ``int``."""


class ElementSize(msgspec.Struct, frozen=True):
    """Size of a stored vector, in 1/256 bytes: for each element, and once for each head's vector."""

    element: int
    vector: int = 0


# Block layouts: ggml (llama.cpp). Per token and head: vLLM, one fp32 scale for each K and V vector.
_SIZES = {
    **dict.fromkeys(("f64", "float64"), ElementSize(2048)),
    **dict.fromkeys(("f32", "fp32", "float32", "float"), ElementSize(1024)),
    **dict.fromkeys(("f16", "fp16", "float16", "half", "bf16", "bfloat16"), ElementSize(512)),
    **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2", "float8_e4m3fn", "float8_e5m2", "f8"), ElementSize(256)),
    **dict.fromkeys(("int8", "i8"), ElementSize(256)),
    **dict.fromkeys(("fp8_per_token_head", "int8_per_token_head"), ElementSize(256, 4 * 256)),
    "q8_0": ElementSize(34 * 8),
    "q5_1": ElementSize(24 * 8),
    "q5_0": ElementSize(22 * 8),
    "q4_1": ElementSize(20 * 8),
    "q4_0": ElementSize(18 * 8),
    "iq4_nl": ElementSize(18 * 8),
    "nvfp4": ElementSize(128 + 16),
    # transformers' QuantizedCache: groups of 64 with a scale and a zero of 16 bits each.
    "int8_g64": ElementSize(256 + 16),
    "int4_g64": ElementSize(128 + 16),
    "int2_g64": ElementSize(64 + 16),
}


class TorchType(Protocol):
    """A ``torch.dtype``, without importing torch."""

    @property
    def itemsize(self) -> int: ...

    @property
    def is_floating_point(self) -> bool: ...


DType: TypeAlias = str | TorchType
"""The name of an element type, such as ``"bf16"``, or torch's own: ``torch.bfloat16``."""


def dtype_name(dtype: object, *, option: str) -> str:
    """The name of ``dtype``. Raises ``TypeError`` naming ``option`` for what is no element type."""
    if isinstance(dtype, str):
        return dtype
    name = str(dtype)
    if not name.startswith("torch."):
        raise TypeError(f"{option} must be a name such as 'bf16', or a torch.dtype, not {dtype!r}")
    return name.removeprefix("torch.")


def element_size(name: str) -> ElementSize:
    """Size of one element of the type ``name``, e.g. ``"bf16"``, ``"q8_0"``. Raises ``ValueError``."""
    size = _SIZES.get(name.removeprefix("torch.").lower())
    if size is None:
        raise ValueError(f"{name!r} is not a known element type; known are {', '.join(sorted(_SIZES))}")
    return size


def is_grouped(name: str) -> bool:
    """Whether the newest tokens, and the layer in use, are kept unpacked beside it (QuantizedCache)."""
    return name.endswith("_g64")


def whole_bytes(name: str, *, option: str) -> int:
    """Bytes of one element of a compute type: 4, 2 or 1. Raises ``ValueError`` naming ``option``."""
    size = element_size(name)
    if size.vector or size.element % UNIT:
        raise ValueError(f"{option}={name!r} is a storage format; give the type that the model computes in")
    return size.element // UNIT
