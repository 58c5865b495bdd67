"""The demo's model: a decoder-only transformer with random weights, in float32.

Owns the arithmetic. What is computed is what a real decoder computes; only the weights mean
nothing. What a sequence remembers is in ``cache``; scheduling belongs to ``engine``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional as nn

from gpu_admission.demo.cache import Cache, PagedCache, WholeCache
from gpu_admission.demo.shape import Shape


class Part:
    """What one sequence adds to a pass: some of its tokens, after those that its cache holds."""

    __slots__ = ("cache", "end", "start", "tokens")

    def __init__(self, cache: Cache, tokens: Sequence[int]) -> None:
        self.cache = cache
        self.tokens = tokens
        self.start = cache.length
        self.end = cache.length + len(tokens)


class Layer:
    """Weights of one block."""

    __slots__ = ("attention_out", "narrow", "qkv", "widen")

    def __init__(self, hidden: int, device: str) -> None:
        self.qkv = _random(3 * hidden, hidden, device)
        self.attention_out = _random(hidden, hidden, device)
        self.widen = _random(4 * hidden, hidden, device)
        self.narrow = _random(hidden, 4 * hidden, device)


class Decoder:
    """The weights, and the one way to use them: move several sequences on in one pass."""

    def __init__(self, shape: Shape, *, device: str = "cpu", page: int = 0, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.shape = shape
        self.device = device
        self._page = page
        self._layers = [Layer(shape.hidden, device) for _ in range(shape.layers)]
        self._embedding = _random(shape.vocabulary, shape.hidden, device)
        self._positions = _random(shape.context, shape.hidden, device)

    def new_cache(self, tokens: int) -> Cache:
        """Room for ``tokens``, in pages as they come where there are pages; then only ``advance`` takes it.

        Raises the device's own out-of-memory error.
        """
        if self._page:
            return PagedCache(self.shape, self._page, self.device)
        return WholeCache(self.shape, tokens, self.device)

    def advance(self, parts: Sequence[Part]) -> list[int]:
        """Run the new tokens of all sequences through each weight once; each one's next token."""
        tokens = [token for part in parts for token in part.tokens]
        positions = [position for part in parts for position in range(part.start, part.end)]
        for part in parts:
            part.cache.reach(part.end)
        x = self._embedding[self._tensor(tokens)] + self._positions[self._tensor(positions)]
        for index, layer in enumerate(self._layers):
            x = self._block(index, layer, x, parts)
        for part in parts:
            part.cache.length = part.end
        last = [end - 1 for end in accumulate(len(part.tokens) for part in parts)]
        chosen: list[int] = nn.linear(self._norm(x[last]), self._embedding).argmax(-1).tolist()
        return chosen

    def _block(self, index: int, layer: Layer, x: Tensor, parts: Sequence[Part]) -> Tensor:
        qkv = nn.linear(self._norm(x), layer.qkv).view(len(x), 3, self.shape.heads, -1)
        rows = torch.split(qkv, [len(part.tokens) for part in parts])
        seen = [_attend(part, index, *own.unbind(1)) for part, own in zip(parts, rows, strict=True)]
        x += nn.linear(torch.cat(seen), layer.attention_out)
        x += nn.linear(nn.linear(self._norm(x), layer.widen).relu_(), layer.narrow)
        return x

    def _norm(self, x: Tensor) -> Tensor:
        return nn.rms_norm(x, (self.shape.hidden,))

    def _tensor(self, numbers: list[int]) -> Tensor:
        return torch.tensor(numbers, device=self.device)


def _attend(part: Part, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Keep the new keys and values, then attend to all that came before each row."""
    keys, values = part.cache.extended(layer, part.start, torch.stack((k, v)).transpose(1, 2))
    mask = None
    if len(q) > 1:
        mask = torch.ones(len(q), part.end, dtype=torch.bool, device=q.device).tril(part.start)
    seen = nn.scaled_dot_product_attention(q.transpose(0, 1)[None], keys[None], values[None], attn_mask=mask)
    return seen[0].transpose(0, 1).flatten(1)


def _random(rows: int, columns: int, device: str) -> Tensor:
    return torch.empty(rows, columns, device=device).normal_(std=columns**-0.5)
