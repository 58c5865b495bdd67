"""Stand-ins for fused state-space kernels: functions that allocate what the kernels allocate.

Owns the kernels of causal-conv1d, mamba-ssm and flash-linear-attention that transformers calls in place of
its own torch code, where they are installed. Read off the forward passes of causal-conv1d 1.6, mamba-ssm
2.2 and flash-linear-attention 0.4: which tensors each makes, and how long it keeps them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final

import torch

_SCAN_CHUNK: Final = 2048
"""Positions between the states that ``selective_scan_fn`` keeps."""
_DELTA_CHUNK: Final = 64
"""Positions of a chunk of flash-linear-attention."""


class StateSpaceKernels:
    """Within it the modules of ``model`` call the stand-ins. ``calls`` counts how often."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.calls = 0
        self._model = model
        self._replaced: list[tuple[ModuleType, str, Any]] = []

    def __enter__(self) -> StateSpaceKernels:
        for name in {type(module).__module__ for module in self._model.modules()}:
            for function in _STAND_INS.keys() & vars(sys.modules[name]).keys():
                module = sys.modules[name]
                self._replaced.append((module, function, getattr(module, function)))
                setattr(module, function, self._counted(_STAND_INS[function]))
        return self

    def __exit__(self, *error: object) -> None:
        for module, name, function in self._replaced:
            setattr(module, name, function)
        self._replaced.clear()

    def _counted(self, standin: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return standin(*args, **kwargs)

        return call


def _convolution(hidden_states: torch.Tensor, *weights: Any, **options: Any) -> torch.Tensor:
    """``causal_conv1d_fn`` and ``causal_conv1d_update``: their output, in the layout of their input."""
    return torch.empty_like(hidden_states)


def _selective_scan(
    hidden_states: torch.Tensor,
    dt: torch.Tensor,
    decay: torch.Tensor,
    into: torch.Tensor,
    out_of: torch.Tensor,
    z: torch.Tensor | None = None,
    return_last_state: bool = False,
    **options: Any,
) -> Any:
    """``selective_scan_fn``: a state for each chunk, two outputs with a gate, and inputs made contiguous."""
    inputs = [_in_rows(t) for t in (hidden_states, dt, into, out_of)]
    if z is not None:
        inputs.append(_in_rows(z))
    out = torch.empty_like(inputs[1])
    rows, width, positions = hidden_states.shape
    chunks = -(-positions // _SCAN_CHUNK)
    states = decay.new_empty((rows, width, chunks, 2 * decay.shape[-1]))
    gated = out if z is None else torch.empty_like(inputs[-1])
    return (gated, states[:, :, -1, 1::2]) if return_last_state else gated


def _state_update(
    state: torch.Tensor, hidden_states: torch.Tensor, *more: Any, **options: Any
) -> torch.Tensor:
    """``selective_state_update``: its output; the state is changed in place."""
    return torch.empty_like(hidden_states)


def _chunk_scan(
    hidden_states: torch.Tensor,
    dt: torch.Tensor,
    decay: torch.Tensor,
    into: torch.Tensor,
    out_of: torch.Tensor,
    chunk_size: int,
    return_final_states: bool = False,
    **options: Any,
) -> Any:
    """``mamba_chunk_scan_combined``: steps, a state and a square of scores for each chunk."""
    rows, positions, heads, width = hidden_states.shape
    groups, states_each = into.shape[2], into.shape[-1]
    chunks = -(-positions // chunk_size)
    exact: dict[str, Any] = {"dtype": torch.float32}
    steps = [dt.new_empty((rows, heads, chunks, chunk_size), **exact) for _ in range(2)]
    states = out_of.new_empty((rows, chunks, heads, width, states_each), **exact)
    passed = out_of.new_empty(states.shape)
    final = out_of.new_empty((rows, heads, width, states_each), **exact)
    del states
    scores = out_of.new_empty((rows, chunks, groups, chunk_size, chunk_size), **exact)
    out = hidden_states.new_empty(hidden_states.shape)
    del steps, passed, scores
    return (out, final) if return_final_states else out


def _chunk_delta(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **options: Any,
) -> Any:
    """``chunk_gated_delta_rule`` and ``chunk_kda``: keys, values and a state for each chunk."""
    rows, positions, heads, width = value.shape
    of_keys = (rows, positions, heads, key.shape[-1])
    normed = [torch.empty_like(t) for t in (query, key)] if use_qk_l2norm_in_kernel else []
    decay = g.new_empty(g.shape, dtype=torch.float32)
    squares = _squares(value, g)
    weights, values = key.new_empty(of_keys), value.new_empty(value.shape)
    more = [key.new_empty(of_keys) for _ in range(2)] if g.dim() == 4 else []  # gated for each channel
    chunks = -(-positions // _DELTA_CHUNK)
    states = key.new_empty((rows, chunks, heads, key.shape[-1], width))
    new_values = torch.empty_like(values)
    final = _final_state(key, value) if output_final_state else None
    out = value.new_empty(value.shape)
    del normed, decay, squares, weights, values, more, states, new_values
    return out, final


def _squares(value: torch.Tensor, g: torch.Tensor) -> list[torch.Tensor]:
    """For each chunk its products of keys, and their inverse, which is made beside them."""
    rows, positions, heads, _ = value.shape
    shape = (rows, positions, heads, _DELTA_CHUNK)
    products = value.new_empty(shape, dtype=torch.float32)
    inverse = value.new_empty(shape)
    return [inverse, products] if g.dim() == 4 else [inverse]


def _recurrent_delta(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *more: Any,
    output_final_state: bool = False,
    **options: Any,
) -> Any:
    """``fused_recurrent_gated_delta_rule`` and ``fused_recurrent_kda``: output and last state."""
    out = value.new_empty(value.shape)
    return out, _final_state(key, value) if output_final_state else None


def _final_state(key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    rows, _, heads, width = value.shape
    return value.new_empty((rows, heads, key.shape[-1], width), dtype=torch.float32)


def _in_rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


_STAND_INS: Final[Mapping[str, Callable[..., Any]]] = {
    "causal_conv1d_fn": _convolution,
    "causal_conv1d_update": _convolution,
    "mamba_selective_scan": _selective_scan,
    "mamba_selective_state_update": _state_update,
    "mamba2_chunk_scan": _chunk_scan,
    "mamba2_selective_state_update": _state_update,
    "torch_chunk_gated_delta_rule": _chunk_delta,
    "torch_recurrent_gated_delta_rule": _recurrent_delta,
    "chunk_kimi_delta_attention": _chunk_delta,
    "recurrent_kimi_delta_attention": _recurrent_delta,
}
"""By the names of transformers' own torch functions, in whose place the kernels come."""
