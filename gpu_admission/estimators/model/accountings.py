"""How many tokens each layer keeps, by runtime: the accountings that ``KVCache`` knows.

Owns the rules of engines, one function each, in the form of ``Term``: bytes for each token
kept, and how many are kept. What a layer's vector holds is in ``layers``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

import msgspec

from gpu_admission.estimators.model.dtypes import UNIT, ElementSize
from gpu_admission.estimators.model.layers import Attention, Layer, State

_16_BITS = ElementSize(2 * UNIT)
_NEWEST = 128
"""Tokens that transformers' QuantizedCache keeps unquantised."""


class CacheOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the engine was started, as far as its cache depends on it."""

    key: ElementSize
    value: ElementSize
    packed_latent: bool = False
    """Latent values of 1 byte with an fp32 scale for each 128, and the rotary part at 16 bits (vLLM)."""
    ssm: ElementSize
    conv: ElementSize
    conv_full_width: bool = False
    """Convolution states keep ``kernel`` columns and not ``kernel - 1`` (transformers)."""
    tp: int = 1
    """Tensor-parallel ranks; the sizes are those of one of them."""
    block: int = 1
    """Tokens of a page."""
    slots: int = 1
    """Parallel sequences that the server set aside memory for."""
    batch_tokens: int = 0
    """Most tokens of one step: micro-batch, or vLLM's ``max_num_batched_tokens``."""
    split_streams: bool = False
    """llama.cpp without the unified cache: each slot has its own cells."""
    swa_full: bool = False
    """llama.cpp keeps windowed layers at full length."""
    skip_full: bool = False
    """Leave the global layers out: one pool of an engine that has two."""


class Term(msgspec.Struct, frozen=True):
    """Bytes that grow with the tokens kept: ``streams`` times, each in whole ``grain``s up to ``cap``."""

    name: str
    unit: int
    """1/256 bytes for each token kept."""
    streams: int = 1
    grain: int = 1
    cap: int = 0
    """The most tokens kept in a stream; 0 = no limit."""
    fixed: int = 0
    """Tokens kept, whatever is asked for; 0 = not fixed."""


Accounting = Callable[[Sequence[Layer], CacheOptions], list[Term]]


def full(layers: Sequence[Layer], options: CacheOptions) -> list[Term]:
    """Every attention layer stores all tokens."""
    return _terms(layers, options, lambda name, unit, window: Term(name, unit, grain=options.block))


def windowed(layers: Sequence[Layer], options: CacheOptions) -> list[Term]:
    """Windowed layers store at most their window: the least that an engine with windows can do."""
    return _terms(
        layers, options, lambda name, unit, window: Term(name, unit, grain=options.block, cap=window)
    )


def vllm(layers: Sequence[Layer], options: CacheOptions) -> list[Term]:
    """Pages; a windowed layer keeps the window before a step and the step, and one page more."""
    block = options.block if options.block > 1 else 16

    def kept(name: str, unit: int, window: int) -> Term:
        pages = _up(window - 1 + options.batch_tokens, block) + block if window else 0
        return Term(name, unit, grain=block, cap=pages)

    return _terms(layers, options, kept)


def ollama(layers: Sequence[Layer], options: CacheOptions) -> list[Term]:
    """Windowed layers set aside ``window x slots + batch`` tokens, whatever is asked for."""

    def kept(name: str, unit: int, window: int) -> Term:
        return Term(name, unit, fixed=window * options.slots + options.batch_tokens if window else 0)

    return _terms(layers, options, kept)


def llamacpp_iswa(layers: Sequence[Layer], options: CacheOptions) -> list[Term]:
    """Cells in multiples of 256; windowed layers keep the window and a micro-batch, for each slot
    when every slot is a stream of its own, else for all of them in one."""
    streams = options.slots if options.split_streams else 1
    windows = 1 if options.split_streams else options.slots

    def kept(name: str, unit: int, window: int) -> Term:
        cells = window * windows + options.batch_tokens if window and not options.swa_full else 0
        return Term(name, unit, streams=streams, grain=256, cap=_up(cells, 256))

    return _terms(layers, options, kept)


def latent(layers: Sequence[Layer], options: CacheOptions) -> list[Term]:
    """One latent vector a layer and token, on every rank."""
    return _terms(layers, options, lambda name, unit, window: Term(name, unit, grain=options.block), _latent)


def indexer(layers: Sequence[Layer], options: CacheOptions) -> list[Term]:
    """The index of sparse attention (DeepSeek V3.2), one vector a layer and token, on every rank."""
    return _terms(
        layers,
        options,
        lambda name, unit, window: Term("indexer", unit, grain=options.block),
        lambda attention, o: attention.indexer * o.key.element,
    )


def unpacked(layers: Sequence[Layer], options: CacheOptions) -> list[Term]:
    """The unpacked part of a quantised cache (transformers): newest tokens, and all of the layer in use."""
    at_16 = msgspec.structs.replace(options, key=_16_BITS, value=_16_BITS)
    sizes = [_expanded(layer.attention, at_16) for layer in layers if layer.attention]
    newest = Term("newest tokens, unpacked", sum(sizes), cap=_NEWEST)
    return [newest, Term("layer in use, unpacked", max(sizes))] if sizes else []


def cross(layers: Sequence[Layer], options: CacheOptions) -> list[Term]:
    """Keys and values of an encoder's output: one set for each of its positions."""
    unit = sum(_expanded(layer.cross, options) for layer in layers if layer.cross)
    return [Term("cross-attention", unit)] if unit else []


def state_unit(layers: Sequence[Layer], options: CacheOptions) -> int:
    """1/256 bytes of recurrent state for each sequence, over all layers."""
    return sum(_state(layer.state, options) for layer in layers if layer.state)


_Kept = Callable[[str, int, int], Term]
_Vector = Callable[[Attention, CacheOptions], int]


def _expanded(attention: Attention, options: CacheOptions) -> int:
    """1/256 bytes of a layer's keys and values for one token; past its heads, ranks hold copies."""
    heads = -(-attention.heads // options.tp)
    key = attention.key_dim * options.key.element + options.key.vector
    return heads * (key + attention.value_dim * options.value.element + options.value.vector)


def _latent(attention: Attention, options: CacheOptions) -> int:
    if options.packed_latent:
        rank = attention.latent - attention.rope
        return UNIT * (rank + 4 * -(-rank // 128) + 2 * attention.rope)
    return attention.latent * options.key.element + options.key.vector


def _state(state: State, options: CacheOptions) -> int:
    columns = state.kernel if options.conv_full_width else state.kernel - 1
    matrix, channels = -(-state.matrix // options.tp), -(-state.channels // options.tp)
    return matrix * options.ssm.element + channels * columns * options.conv.element


def _terms(
    layers: Sequence[Layer], options: CacheOptions, kept: _Kept, vector: _Vector = _expanded
) -> list[Term]:
    """One term for each window length: the layers with it, added up."""
    stored = [a for layer in layers if (a := layer.attention)]
    sizes = sorted((a.window, vector(a, options)) for a in stored if a.window or not options.skip_full)
    terms = []
    for window, same in groupby(sizes, key=lambda pair: pair[0]):
        unit = sum(size for _, size in same)
        name = f"layers of window {window}" if window else "global layers"
        if unit:
            terms.append(kept(name, unit, window))
    return terms


def _up(value: int, grain: int) -> int:
    return -(-value // grain) * grain


ACCOUNTINGS: dict[str, Accounting] = {
    "full": full,
    "windowed": windowed,
    "vllm": vllm,
    "ollama": ollama,
    "llamacpp_iswa": llamacpp_iswa,
    "mla_latent": latent,
    "mla_expanded": full,
    "indexer": indexer,
}
"""``state`` and ``cross`` are not among them: they do not count the tokens of a sequence."""
