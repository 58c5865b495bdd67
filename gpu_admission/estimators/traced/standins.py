"""What stands in for fused attention: functions that allocate what the kernels allocate.

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
    out = _output(query, value)
    _sums = query.new_empty(query.shape[:-1], dtype=torch.float32)
    del mask
    return out


def _output(query: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """As the kernels lay it out: heads inside positions, so that joining the heads copies nothing."""
    if query.dim() != 4:
        return query.new_empty((*query.shape[:-1], value.shape[-1]))
    rows, heads, positions, _ = query.shape
    return query.new_empty((rows, positions, heads, value.shape[-1])).transpose(1, 2)


def flash_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' flash attention. With padding it packs query, keys and values, and unpacks the output."""
    rows, heads, positions, _ = query.shape
    packed = None
    if attention_mask is not None:
        packed = [t.transpose(1, 2).flatten(0, 1).new_empty(t.shape) for t in (query, key, value)]
    out = query.new_empty((rows, positions, heads, value.shape[-1]))
    _sums = query.new_empty((rows, heads, positions), dtype=torch.float32)
    if packed is None:
        return out, None
    unpacked = torch.empty_like(out)
    del packed
    return unpacked, None
