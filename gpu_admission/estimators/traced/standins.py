"""Stand-ins for fused attention: functions that allocate what the kernels allocate.

Owns attention, in the three ways that a server can choose. State-space kernels are in
``kernels``. Nothing here counts; the tracer does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class FusedAttention(TorchFunctionMode):
    """``scaled_dot_product_attention`` as the fused kernels run it: its output, a number for each
    query, and a mask of booleans once more as numbers. No scores."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            return _sdpa(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _sdpa(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    *others: Any,
    **options: Any,
) -> torch.Tensor:
    mask = None
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        mask = attn_mask.new_empty(attn_mask.shape, dtype=query.dtype)
    if query.dim() == 4 and query.shape[1] != key.shape[1] and not options.get("enable_gqa"):
        # Heads that are broadcast: no fused kernel takes them, and torch falls back on its own code.
        return _plain_sdpa(query, key, value, attn_mask if mask is None else mask, *others, **options)
    out = _output(query, value)
    query.new_empty(query.shape[:-1], dtype=torch.float32)  # a number for each query
    del mask
    return out


def _plain_sdpa(*args: Any, **options: Any) -> torch.Tensor:
    """The scores of every pair, in torch's own operators."""
    options.pop("enable_gqa", None)
    out: torch.Tensor = torch.ops.aten._scaled_dot_product_attention_math(*args, **options)[0]
    return out


def _output(query: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Laid out as by the kernels: heads inside positions, so that joining the heads copies nothing."""
    if query.dim() != 4:
        return query.new_empty((*query.shape[:-1], value.shape[-1]))
    rows, heads, positions, _ = query.shape
    return query.new_empty((rows, positions, heads, value.shape[-1])).transpose(1, 2)


class FlashAttention:
    """transformers' flash attention. With padding it packs query, keys and values, and unpacks the output."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        **options: Any,
    ) -> tuple[torch.Tensor, None]:
        self.calls += 1
        packed = None if attention_mask is None else [_packed(t) for t in (query, key, value)]
        out = _flash_output(query, value)
        if packed is None:
            return out, None
        unpacked = torch.empty_like(out)
        del packed
        return unpacked, None


def _flash_output(query: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    rows, heads, positions, _ = query.shape
    out = query.new_empty((rows, positions, heads, value.shape[-1]))
    query.new_empty((rows, heads, positions), dtype=torch.float32)  # a number for each query
    return out


def _packed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.new_empty(tensor.shape)
